"""The command line as a new user meets it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

import nearcast
from nearcast.site.ports import free_ports
from nearcast.testing import until

EXAMPLES = Path(__file__).parents[2] / "examples"
NEARCAST = [sys.executable, "-c", "from nearcast.cli import main; main()"]


async def run(*arguments: str | bytes) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command."""
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def serving(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that runs until it is interrupted; it must say that it is ready, and end well."""
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while line := await process.stdout.readline():
                if line.startswith(b"Ready."):
                    break
            else:
                pytest.fail((await process.stderr.read()).decode())
        yield process
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def example(folder: Path) -> tuple[Path, int]:
    """The example on free ports."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".nearcast"))
    port = free_ports(40)
    config = folder / "nearcast.toml"
    text = config.read_text().replace("mqtt_port = 1883", f"mqtt_port = {port + 35}")
    for n, old in enumerate((4222, 4232, 4242)):
        text = text.replace(f"port = {old} ", f"port = {port + 10 * n} ").replace(
            f"port = {old}\n", f"port = {port + 10 * n}\n"
        )
    config.write_text(text)
    return config, port


async def drive(url: str) -> list[float]:
    async with nearcast.connect(url, name="car7", timeout=20) as client, client.subscribe("gps.car7") as warnings:
        for kmh in (60, 75, 90, 105, 120):
            await client.publish("gps.car7", {"kmh": kmh}, timeout=20)
        return [(await anext(warnings)).data["mean_kmh"] for _ in range(2)]


async def test_up_runs_the_example_and_stops_cleanly(tmp_path: Path) -> None:
    config, port = example(tmp_path)
    async with serving("up", "--config", str(config)) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        assert await drive(f"nats://127.0.0.1:{port}") == [82.5, 90.0]
        code, _, err = await run("up", "--config", str(config))
        assert code == 2
        assert f"port {port} (clients) of 127.0.0.1 is in use by another program" in err
        assert "Traceback" not in err
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


async def test_up_with_a_console(tmp_path: Path) -> None:
    """A coordinator and the console beside the sites; nothing is left when `up` is killed."""
    config, port = example(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, "up", "--config", str(config), "--console", "--port", "0",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(90):
            while not (line := (await process.stdout.readline()).decode()).startswith("Console: http://127.0.0.1:"):
                assert line
            assert (await process.stdout.readline()).startswith(b"Ready.")
        console = line.split()[1]

        def sites() -> list[str]:
            with urllib.request.urlopen(f"{console}/api/v1/sites", timeout=30) as answer:
                return [site["site"] for site in json.loads(answer.read())]

        async def registered() -> bool:
            return await asyncio.to_thread(sites) == ["cloud", "osaka", "tokyo"]

        await until(registered, 60)
        assert await drive(f"nats://127.0.0.1:{port}") == [82.5, 90.0]
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 30)
    assert not alive


async def test_each_site_may_run_on_its_own(tmp_path: Path) -> None:
    config, port = example(tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        for name in ("tokyo", "osaka", "cloud"):
            await stack.enter_async_context(serving("site", "run", "--config", str(config), "--name", name))
        assert await drive(f"nats://127.0.0.1:{port}") == [82.5, 90.0]


async def test_a_killed_supervisor_takes_its_servers_along(tmp_path: Path) -> None:
    config, _ = example(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, "up", "--config", str(config), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    while not (await process.stdout.readline()).startswith(b"Ready."):
        pass
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 8
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 30)
    assert not alive


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("site", "run", "--name", "paris"), "site 'paris' is not in the configuration; it has: tokyo, osaka, cloud"),
        (("up", "--config", "no.toml"), "no.toml: there is no such file"),
        (
            ("site", "run", "--name", "tokyo", "--run-directory", "/dev/null"),
            "site tokyo: run directory '/dev/null/tokyo' cannot be made: Not a directory; "
            "choose another one with --run-directory",
        ),
    ],
)
async def test_mistakes_are_one_line_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    config, _ = example(tmp_path)
    given = arguments if "--config" in arguments else (*arguments, "--config", str(config))
    code, _, err = await run(*given)
    assert code == 2
    assert err == f"nearcast: {complaint}\n"


async def test_a_site_needs_the_directory_of_its_own_store_only(tmp_path: Path) -> None:
    config, _ = example(tmp_path)
    for name in ("osaka", "cloud"):
        shutil.rmtree(tmp_path / "stores" / name)
    async with serving("site", "run", "--config", str(config), "--name", "tokyo"):
        pass
    code, _, err = await run("site", "run", "--config", str(config), "--name", "osaka")
    missing = tmp_path / "stores" / "osaka"
    assert (code, err) == (2, f"nearcast: site osaka: store directory '{missing}' is not a directory; make it first\n")
    code, _, err = await run("up", "--config", str(config))
    assert (code, err) == (2, f"nearcast: site osaka: store directory '{missing}' is not a directory; make it first\n")


async def test_a_broken_processor_module_is_named(tmp_path: Path) -> None:
    config, _ = example(tmp_path)
    (tmp_path / "speeding.py").write_text("import no_such_module\n")
    code, _, err = await run("up", "--config", str(config))
    assert code == 1
    assert "module 'speeding' cannot be imported: ModuleNotFoundError: No module named 'no_such_module'" in err
    assert "Traceback" not in err
