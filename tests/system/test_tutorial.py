"""docs/tutorial.md, run line by line in an empty directory; only the ports are other ones."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

from nearcast.site.ports import free_ports
from nearcast.testing import until

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
LIMIT = 60.0


async def test_the_tutorial(tmp_path: Path) -> None:
    """A command's expected lines must be part of what it prints; those of `sed` are printed by `nearcast dev`."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    for name, target in (("nearcast", "-c 'from nearcast.cli import main; main()'"), ("python", "")):
        (scripts / name).write_text(f'#!/bin/sh\nexec {sys.executable} {target} "$@"\n')
        (scripts / name).chmod(0o755)
    port = free_ports(20)
    environment = os.environ | {
        "PATH": f"{scripts}:{os.environ['PATH']}", "NEARCAST_URL": f"nats://127.0.0.1:{port}", "PYTHONUNBUFFERED": "1"
    }  # fmt: skip
    folder, running, log = tmp_path / "empty", None, tmp_path / "dev.log"
    folder.mkdir()
    try:
        for command, expected in steps():
            if command.startswith("cd "):
                folder /= command.removeprefix("cd ")
            elif command.endswith(" &"):
                with log.open("wb") as out:
                    running = await asyncio.create_subprocess_exec(
                        *command.removesuffix(" &").split(), cwd=folder, env=environment, stdout=out, stderr=out
                    )
                await logged(log, expected)
            else:
                given = f"{command} --port {port}" if command.startswith("nearcast init") else command
                said = await shell(given, folder, environment)
                if command.startswith("sed"):
                    await logged(log, expected)
                    continue
                while "dead-letters" in command and expected[0] not in said:  # it is given up a moment later
                    said = await shell(given, folder, environment)
                for line in expected:
                    assert line in said, f"{command}: {said}"
        assert running is not None
        flowed = log.read_text()
        assert "notification  readings.kitchen" in flowed
        assert "dead letter   readings.kitchen" in flowed
        running.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(running.wait(), LIMIT) == 0
    finally:
        if running is not None and running.returncode is None:
            running.kill()
            await running.wait()


def steps() -> list[tuple[str, list[str]]]:
    """Commands with the lines that follow them."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    assert len(found) > 10
    return found


async def shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_shell(
        command, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), LIMIT)
    assert process.returncode == 0, said.decode()
    return said.decode()


async def logged(log: Path, expected: list[str]) -> None:
    await until(lambda: all(line in log.read_text() for line in expected), LIMIT)
