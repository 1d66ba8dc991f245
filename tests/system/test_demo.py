"""The demonstration as a new user runs it, short and without Spark; what it says is what is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from tests.system.test_cli import NEARCAST

from nearcast.lab.wan import missing_right

LIMIT = 600  # it starts some twenty processes, and a machine may have little time for them
NAMESPACES = Path("/run/netns")
pytestmark = pytest.mark.timeout(LIMIT + 60)


@contextlib.asynccontextmanager
async def running_demo(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, "demo", "--no-cluster", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(LIMIT):
            yield process
    finally:
        if process.returncode is None:
            process.terminate()  # it ends what it started
            await process.wait()


async def test_the_demo_accounts_for_every_message_and_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with running_demo("--duration", "6", "--act", "5", "--no-distance") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        link = ""
        while b"Act 5: " not in (line := await process.stdout.readline()):
            assert line, f"it ended before its story began: {(await process.stderr.read()).decode()}"
            link = line.decode().split("Console: ")[1].split()[0] if b"Console: " in line else link
        address, secret = link.split("/login#link=")
        assert await asyncio.to_thread(logged_in, address, secret) == ("admin", "operator")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(logged_in, address, "guessed")
        out, err = (text.decode() for text in await process.communicate())
    out = line.decode() + out
    assert process.returncode == 0, out + err
    assert "Act 5: A latecomer" in out
    assert "alerts of 5 zones" in out
    assert "Nothing was lost, nothing came twice." in out
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["nearcast-demo-logs"], "the logs that it names, and nothing else"


@pytest.mark.xdist_group("wan")  # a start clears what killed emulators left, of any test
async def test_ctrl_c_in_the_middle_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wide area where this machine allows one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    distance = ["--no-distance"] if missing_right() else []
    async with running_demo("--act", "1", *distance) as process:
        assert process.stdout is not None
        while b"Act 1: " not in (line := await process.stdout.readline()):
            assert line, "it ended before its story began"
        children = psutil.Process(process.pid).children(recursive=True)
        namespaces = namespaces_of(children)
        assert len(children) > 15
        assert bool(namespaces) != bool(distance)
        process.send_signal(signal.SIGINT)
        out, err = (text.decode() for text in await process.communicate())
    assert process.returncode == 1
    assert err == "nearcast: stopped before the end of the story\n", out + err
    assert [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
    assert [name for name in namespaces if (NAMESPACES / name).exists()] == []
    assert os.listdir(tmp_path) == ["nearcast-demo-logs"]


def logged_in(address: str, link: str) -> tuple[str, str]:
    """Who is logged in by the link of a console, and in which role."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{address}/api/v1/login/link", json.dumps({"link": link}).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        told = json.loads(answer.read())
    return told["user"], told["role"]


def namespaces_of(processes: list[psutil.Process]) -> list[str]:
    """The names of the network namespaces that processes are in, but for our own."""
    inside = set()
    for process in processes:
        with contextlib.suppress(OSError):  # it may have ended
            inside.add(os.stat(f"/proc/{process.pid}/ns/net").st_ino)
    inside.discard(os.stat("/proc/self/ns/net").st_ino)
    found = NAMESPACES.iterdir() if NAMESPACES.is_dir() else ()
    return [path.name for path in found if path.stat().st_ino in inside]
