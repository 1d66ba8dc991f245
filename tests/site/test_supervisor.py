"""A supervised process comes up, comes back, and goes for good."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.suspend import suspend

from nearcast import NearcastError
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.supervisor import REFUSED, SupervisedProcess
from nearcast.testing import until


async def at_once() -> None:
    await asyncio.sleep(0)


async def test_it_is_restarted_when_it_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = SupervisedProcess("sleeper", ["sleep", "600"], tmp_path / "log", ready=at_once)
    await process.start()
    first = process.pid
    assert first is not None
    for n in range(2):
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while process.restarts == n:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert process.restarts == 2
    assert [message.partition(";")[0] for message in caplog.messages] == ["sleeper ended with code -9"] * 2
    last = process.pid
    assert last not in (None, first)
    await process.stop()
    assert process.pid is None
    assert not psutil.pid_exists(last or 0)


async def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    command = [sys.executable, "-c", "import sys; sys.exit('the port is taken')"]
    process = SupervisedProcess("broken", command, tmp_path / "log", ready=never)
    with pytest.raises(NearcastError, match="broken ended with code 1: the port is taken"):
        await process.start()
    assert process.pid is None


async def test_one_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    command = ["bash", "-c", "trap '' TERM; echo up; while true; do sleep 0.1; done"]
    process = SupervisedProcess("stubborn", command, tmp_path / "log", ready=at_once)
    await process.start()
    while "up" not in (tmp_path / "log").read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    pid = process.pid
    await process.stop(grace=0.2)
    assert not psutil.pid_exists(pid or 0)


async def test_one_that_ignores_the_request_is_killed_when_its_start_is_cancelled(tmp_path: Path) -> None:
    """Who ends a start cancels it until it has ended: that took a worker's supervisor away before the worker was."""

    async def never() -> None:
        await asyncio.Event().wait()

    command = ["bash", "-c", "trap '' TERM; echo up; while true; do sleep 0.1; done"]
    process = SupervisedProcess("stubborn", command, tmp_path / "log", ready=never)
    starting = asyncio.create_task(process.start())
    await until(lambda: process.pid is not None and "up" in process.written(), 30)
    pid = process.pid
    assert pid is not None
    await cancel_and_wait(starting)
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 5)


async def test_one_that_hangs_is_killed_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A process under SIGSTOP has not ended; only asking it tells."""
    answered = tmp_path / "answered"
    command = ["bash", "-c", f"while true; do touch {answered}; sleep 0.05; done"]

    async def answers() -> None:
        answered.unlink(missing_ok=True)
        while not answered.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    process = SupervisedProcess("stopped", command, tmp_path / "log", answers, answers=answers, hung_after=2.0)
    await process.start()
    first = process.pid
    assert first is not None
    suspend(first)
    async with asyncio.timeout(60):
        while process.restarts == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert process.pid not in (None, first)
    assert not psutil.pid_exists(first)
    assert "stopped did not answer for 2 s and was killed" in caplog.text
    await asyncio.sleep(3.0)  # the new one answers: it is left alone
    assert process.restarts == 1
    await process.stop()


async def test_one_that_answers_slowly_does_not_hang(tmp_path: Path) -> None:
    """On a busy machine a worker took more than two seconds for each answer, and was killed for it."""
    answered = 0

    async def answers() -> None:
        nonlocal answered
        await asyncio.sleep(2.5)
        answered += 1

    process = SupervisedProcess("slow", ["sleep", "600"], tmp_path / "log", at_once, answers=answers, hung_after=3.0)
    await process.start()
    async with asyncio.timeout(60):
        while answered < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert process.restarts == 0
    await process.stop()


async def test_one_that_dies_at_its_first_start_is_started_again(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    command = ["bash", "-c", f"test -e {tried} && exec sleep 600; touch {tried}; kill -9 $$"]

    def runs() -> str:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(process.pid).name() if process.pid is not None else ""
        return ""

    async def ready() -> None:
        while runs() != "sleep":  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    process = SupervisedProcess("unlucky", command, tmp_path / "log", ready)
    await process.start()
    assert process.pid is not None
    await process.stop()


async def test_one_that_refuses_its_configuration_is_not_tried_again(tmp_path: Path) -> None:
    tried = tmp_path / "tried"

    async def never() -> None:
        await asyncio.Event().wait()

    command = ["bash", "-c", f"echo once >> {tried}; echo wrong; exit {REFUSED}"]
    with pytest.raises(NearcastError, match="wrong"):
        await SupervisedProcess("refusing", command, tmp_path / "log", never).start()
    assert tried.read_text() == "once\n"


SUPERVISOR = """
import asyncio, os, signal, sys
from pathlib import Path
from nearcast.site.supervisor import SupervisedProcess

async def main():
    async def at_once(): pass
    process = SupervisedProcess("hung", ["sleep", "600"], Path(sys.argv[1]), at_once, orphaned=signal.SIGKILL)
    await process.start()
    os.kill(process.pid, signal.SIGSTOP)
    print(process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_an_orphan_that_hangs_ends_with_its_supervisor(tmp_path: Path) -> None:
    """A request to end would wait until it goes on, beside its successor."""
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR, str(tmp_path / "log"), stdout=asyncio.subprocess.PIPE
    )
    assert supervisor.stdout is not None
    hung = psutil.Process(int(await supervisor.stdout.readline()))

    def has_ended() -> bool:
        try:
            return hung.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    supervisor.kill()
    await supervisor.wait()
    try:
        await until(has_ended)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            hung.kill()
