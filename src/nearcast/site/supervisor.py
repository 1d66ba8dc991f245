"""Supervised processes: started, monitored, restarted with growing pauses when they die, stopped for good."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

__all__ = ["SupervisedProcess", "die_with_parent"]

_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_STABLE_AFTER = 30.0


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent dies, so that a killed supervisor leaves nothing behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@dataclass
class SupervisedProcess:
    """A child process that is kept running.

    ready: awaited after every start; raises when the process does not become ready. stdin: given to each new process.
    """

    name: str
    command: Sequence[str]
    log_file: Path
    ready: Callable[[], Awaitable[None]]
    stdin: bytes = b""
    restarts: int = 0
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
        """Start, wait until ready, then monitor."""
        await self._launch()
        self._monitor_task = asyncio.create_task(self._monitor(), name=f"monitor {self.name}")

    async def stop(self, grace: float = 5.0) -> None:
        """Terminate the process for good; kill it when it does not end within `grace` seconds."""
        await cancel_and_wait(self._monitor_task)
        self._monitor_task = None
        await self._end(grace)

    async def _launch(self) -> None:
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE if self.stdin else asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
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
            assert self._process is not None
            code = await self._process.wait()
            reason = f"{self.name} ended with code {code}"
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
                else:
                    break
            self.restarts += 1

    async def _end(self, grace: float) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                async with asyncio.timeout(grace):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    def _last_log_line(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "its log is empty"
