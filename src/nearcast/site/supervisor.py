"""Supervised processes: started, monitored, restarted with growing pauses when they die or hang, stopped for good.

Health is by answer: a process that is asked each second and does not answer for ten is killed and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.process_groups import kill_session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["REFUSED", "SupervisedProcess", "die_with_parent"]

_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_STABLE_AFTER = 30.0
_FIRST_ATTEMPTS = 5
# On a machine that is too busy a process may take seconds to answer, and does not hang.
_ASK_PERIOD, _ASK_LIMIT = 1.0, 4.0
REFUSED = os.EX_CONFIG
"""The exit code of a server or worker that cannot work as it is configured."""


def die_with_parent(number: int) -> None:
    """Ask Linux to end this process when its parent dies, so that a killed supervisor leaves nothing behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


@dataclass
class SupervisedProcess:
    """A child process that is kept running.

    ready: awaited after every start; raises when the process does not become ready. stdin: given to each new process.
    answers: asked each second while it runs; raises when the process does not answer. Without it only its end counts.
    hung_after: seconds without an answer after which it is killed. orphaned: the signal it gets when its supervisor
    dies. environment: variables besides those of this process. refused: the exit code of one that cannot work as it is
    configured; at its first start it is not tried again.
    """

    name: str
    command: Sequence[str]
    log_file: Path
    ready: Callable[[], Awaitable[None]]
    stdin: bytes = b""
    answers: Callable[[], Awaitable[None]] | None = None
    hung_after: float = 10.0
    orphaned: signal.Signals = signal.SIGTERM
    environment: Mapping[str, str] = field(default_factory=dict)
    refused: int = REFUSED
    restarts: int = 0
    _log_start: int = field(default=0, init=False)  # where the log of the present process begins
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _monitor_task: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    @property
    def started(self) -> bool:
        """Whether it became ready once, and is kept running since."""
        return self._monitor_task is not None

    async def start(self) -> None:
        """Start, wait until ready, then monitor. One that dies or hangs before it is ready is tried again."""
        pause = _FIRST_PAUSE
        for attempt in range(1, _FIRST_ATTEMPTS + 1):
            try:
                await self._launch()
                break
            except (NearcastError, OSError, TimeoutError) as error:
                code = self._process.returncode if self._process is not None else None
                if attempt == _FIRST_ATTEMPTS or code == self.refused:
                    raise
                _log.warning("%s did not start: %s; trying again in %.1f s", self.name, error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._monitor_task = asyncio.create_task(self._monitor(), name=f"monitor {self.name}")

    def written(self) -> str:
        """What the present process, or the last one, wrote to its log."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    async def stop(self, grace: float = 5.0) -> None:
        """Terminate the process for good; kill it when it does not end within `grace` seconds."""
        await cancel_and_wait(self._monitor_task)
        self._monitor_task = None
        await self._end(grace)

    async def _launch(self) -> None:
        with _private_log(self.log_file) as log:
            self._log_start = log.seek(0, os.SEEK_END)
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE if self.stdin else asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                preexec_fn=partial(die_with_parent, self.orphaned),
                start_new_session=True,
            )
        if self._process.stdin is not None:
            self._process.stdin.write(self.stdin)
            self._process.stdin.close()
        ready = asyncio.ensure_future(self.ready())
        ended = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise NearcastError(f"{self.name} ended with code {ended.result()}: {self._last_log_line()}")
            ready.result()
        except BaseException:
            await self._end(1.0)
            raise
        finally:
            await cancel_and_wait(ready, ended)

    async def _monitor(self) -> None:
        pause = _FIRST_PAUSE
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            reason = await self._until_it_ends()
            if clock() - started > _STABLE_AFTER:
                pause = _FIRST_PAUSE
            while True:
                _log.warning("%s; restarting in %.1f s", reason, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    await self._launch()
                except (NearcastError, OSError, TimeoutError) as error:
                    reason = f"{self.name} did not start: {error}"
                except Exception as error:
                    reason = f"{self.name} did not start: {error}"
                    _log.exception("%s did not start", self.name)
                else:
                    break
            self.restarts += 1
            _log.info("%s is up again", self.name)

    async def _until_it_ends(self) -> str:
        """Wait until the process ends, or kill it when it hangs; why it ended."""
        assert self._process is not None
        ended = asyncio.ensure_future(self._process.wait())
        hung = asyncio.ensure_future(self._until_it_hangs())
        try:
            await asyncio.wait((ended, hung), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                kill_session(self._process.pid)
                return f"{self.name} ended with code {ended.result()}"
            self._process.kill()  # SIGTERM would wait in a stopped process
            await ended
            kill_session(self._process.pid)
            return f"{self.name} did not answer for {self.hung_after:g} s and was killed"
        finally:
            await cancel_and_wait(ended, hung)

    async def _until_it_hangs(self) -> None:
        """Only the time in which this process waited counts: it may have been stopped itself."""
        if self.answers is None:
            await asyncio.Event().wait()
            return
        clock, silent = asyncio.get_running_loop().time, 0.0
        while silent < self.hung_after:
            asked = clock()
            try:
                async with asyncio.timeout(_ASK_LIMIT):
                    await self.answers()
                silent = 0.0
            except (NearcastError, OSError, TimeoutError) as error:
                silent += min(clock() - asked, _ASK_LIMIT) + _ASK_PERIOD
                _log.debug("%s does not answer: %s", self.name, error or "timed out")
            await asyncio.sleep(_ASK_PERIOD)

    async def _end(self, grace: float) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                process.terminate()
                async with asyncio.timeout(grace):
                    await process.wait()
        finally:  # also when this is cancelled: who cancels a start does so until it has ended
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            kill_session(process.pid)  # what it forked, and what ignores signals
        await process.wait()

    def _last_log_line(self) -> str:
        lines = self.written().splitlines()
        return lines[-1] if lines else "its log is empty"


def _private_log(path: Path) -> BinaryIO:
    """A file to append to that nobody else on this machine may read: logs name users and topics."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")
