"""README's examples run as they stand, but for the ports: Python, and the commands of a shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.system.test_cli import example
from tests.system.test_metrics import read as read_metrics

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until

README = Path(__file__).parents[2] / "README.md"
LIMIT = 600.0  # Spark starts in it
PRINTS = {"examples/drive.py": "too fast: {'mean_kmh': 90.0}", "dataset add": "is added.", "channel add": "is added."}
CHANNEL = """
import asyncio, nearcast

async def main():
    async with nearcast.connect("{url}") as client, {subscribe} as results:
        {feed}
        print((await anext(results)).data)

asyncio.run(main())
"""


async def test_the_python_examples(city, tmp_path) -> None:
    processor, without_servers, client, script = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "speeding.py").write_text(processor)
    await run(without_servers, tmp_path)
    (tmp_path / "city_processors.py").write_text(processor)
    async with city(TopicSpec("gps.*", ("tokyo",), ("tokyo", "osaka"), 2), names=("tokyo", "osaka")) as c:
        for code, expected in ((client, "{'mean_kmh': 130.0}"), (script, "gps.car8 130.0")):
            changed = code.replace("nats://127.0.0.1:4222", c.url("tokyo"))
            assert changed != code
            assert expected in await run(changed, tmp_path)


async def test_a_malformed_publication_harms_only_itself(city, tmp_path) -> None:
    """While one without a speed was in the spool, all later ones of its topic became dead letters."""
    processor = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    (tmp_path / "city_processors.py").write_text(processor)
    async with city(TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1), names=("tokyo",)) as c:
        async with nearcast.connect(c.url("tokyo")) as client, client.subscribe("gps.car7") as warnings:
            async with client.dead_letters("gps.car7") as letters, asyncio.timeout(120):
                for data in ({"kmh": 90}, {"speed": 1}, {"kmh": "fast"}, b"no JSON", {"kmh": 110}):
                    await client.publish("gps.car7", data)
                assert [(await anext(warnings)).data["mean_kmh"] for _ in range(2)] == [90, 100]
                reasons = [(await anext(letters)).reason for _ in range(3)]
                assert ["`kmh`" in reasons[0], "Expected `float`" in reasons[1]] == [True, True]
                await client.publish("gps.car7", {"kmh": 100})
                assert (await anext(warnings)).data["mean_kmh"] == 100
                assert letters.received == 3


@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.xdist_group("spark")
async def test_the_commands(tmp_path: Path) -> None:
    """Those that run on, in the order of the page, until they say that they are ready; the others to their end."""
    environment = checkout(tmp_path)
    url, folder, printed = environment["NEARCAST_URL"], tmp_path, ""
    async with contextlib.AsyncExitStack() as stack:
        for command in commands():
            if command.startswith("cd "):
                folder /= command.partition(";")[0].removeprefix("cd ")
            elif "nearcast up" in command or command.endswith(" &"):
                await stack.enter_async_context(serving(command.removesuffix(" &"), folder, environment))
            elif "site ls" in command:  # sites register with their first reports
                while "tokyo" not in await shell(command, folder, environment):
                    pass
            else:
                printed = await shell(command, folder, environment)
                assert all(text in printed for part, text in PRINTS.items() if part in command), printed
        subscribe, feed = re.findall(r"`((?:await )?client\.(?:subscribe_channel|feed)\(.*?\))`", README.read_text())
        code = CHANNEL.format(url=url, subscribe=subscribe, feed=feed)
        assert "{'id': 'r7', 'severity': 4}" in await run(code, tmp_path, LIMIT)
        # Of real processes: three sites, the data cluster and the console.
        said = "".join(log.read_text() for log in (tmp_path / "up.out", folder / "cluster.out"))
        addresses = [*re.findall(r"http://\S+/metrics", said), f"{re.findall('Console: ([^ ]+)', said)[0]}/metrics"]
        assert len(addresses) == 5
        for address in addresses:
            assert "nearcast_build_info" in await asyncio.to_thread(read_metrics, address)


def checkout(folder: Path) -> dict[str, str]:
    """A folder like a checkout after set-up, with the data cluster in the configuration, and the environment there."""
    config, port = example(folder / "examples")
    config.write_text(config.read_text().replace("# [cluster]", "[cluster]").replace("# warehouse", "warehouse"))
    drive = folder / "examples" / "drive.py"
    drive.write_text(drive.read_text().replace(":4222", f":{port}"))
    scripts = folder / ".venv" / "bin"
    scripts.mkdir(parents=True)
    for name, target in (("nearcast", "-c 'from nearcast.cli import main; main()'"), ("python", "")):
        (scripts / name).write_text(f'#!/bin/sh\nexec {sys.executable} {target} "$@"\n')
        (scripts / name).chmod(0o755)
    path = f"{scripts}:{os.environ['PATH']}"
    return os.environ | {"NEARCAST_URL": f"nats://127.0.0.1:{port}", "PYTHONUNBUFFERED": "1", "PATH": path}


def commands() -> list[str]:
    """The commands of all blocks but that of `make`, without comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    shells = [block.replace("\\\n", " ") for language, block in blocks if not language and "make demo" not in block]
    lines = [line for block in shells for line in block.splitlines()]
    found = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    assert len(found) >= 7
    return [f"{line} --port 0" if "--console" in line else line for line in found]


@contextlib.asynccontextmanager
async def serving(command: str, folder: Path, environment: dict[str, str]) -> AsyncIterator[None]:
    """A command that runs on, once it is ready. It must end well."""
    log = folder / f"{command.split()[1]}.out"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", f"exec {command}", cwd=folder, env=environment, stdout=out, stderr=out
        )
    try:
        await until(lambda: process.returncode is not None or "\nReady." in f"\n{log.read_text()}", LIMIT)
        assert process.returncode is None, log.read_text()
        yield
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), LIMIT) == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    """What a command prints; it must end well."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f"exec {command}", cwd=folder, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{command}: {output.decode()}"
    return output.decode()


async def run(code: str, folder: Path, limit: float = 60) -> str:
    """What a script prints; it must end well."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), limit)
    assert process.returncode == 0, output.decode()
    return output.decode()
