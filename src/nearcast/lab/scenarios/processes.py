"""Processes at the nodes of a wide area: started, watched, and ended together, each with a log of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from nearcast.errors import NearcastError

__all__ = ["BACKGROUND", "MEASURED", "NEARCAST", "READY", "NodeProcess", "NodeProcesses", "node_processes"]

NEARCAST = ("-c", "from nearcast.cli import main; main()")  # arguments of Python, before those of the command
READY = "ready"
_END_LIMIT = 10.0
MEASURED = -20  # latency is measured, not what else runs on this machine
BACKGROUND = 19


class NodeProcess:
    """A program that runs at a node. Its standard output can be awaited, its errors go to a file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self._process, self._log = name, process, log

    @property
    def pid(self) -> int:
        """Its process number; commands at a node replace the one that entered it."""
        return self._process.pid

    async def has_ended(self) -> None:
        """Wait until it has ended, in whatever way. What it printed last is dropped."""
        assert self._process.stdout is not None
        while await self._process.stdout.read(1 << 16):
            pass
        await self._process.wait()

    async def terminate(self) -> None:
        """Ask it to end, and kill it when it takes too long; somebody else may be reading what it prints."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_END_LIMIT):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def said(self, text: str, limit: float) -> None:
        """Wait until it has printed a line that begins with this."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(limit):
                while line := await self._process.stdout.readline():
                    if line.decode().startswith(text):
                        return
        except TimeoutError:
            raise NearcastError(f"{self.name} did not say {text!r} within {limit:g} s; its log: {self._log}") from None
        raise NearcastError(f"{self.name} ended: {self.last_words()}")

    async def tell(self, line: bytes) -> None:
        """Give it a line on its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    async def finished(self, limit: float) -> None:
        """Wait until it has ended by itself, without an error."""
        try:
            async with asyncio.timeout(limit):
                await self._process.communicate()
        except TimeoutError:
            raise NearcastError(f"{self.name} did not end within {limit:g} s; its log: {self._log}") from None
        if self._process.returncode:
            raise NearcastError(f"{self.name} ended with code {self._process.returncode}: {self.last_words()}")

    def kill(self) -> None:
        """Kill it, as a power failure would."""
        self._process.kill()

    async def end(self) -> None:
        """Terminate it, or kill it when it takes too long; what it prints meanwhile is dropped."""
        await asyncio.gather(self.terminate(), self.has_ended())

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class NodeProcesses:
    """All processes of one run. They get no signal of the terminal: who runs them ends them.

    command: the command line that runs one at a node. niceness: of all of them, 0 for this process's. `MEASURED`:
    before everything else on this machine.
    """

    def __init__(self, command: Callable[..., list[str]], logs: Path, *, niceness: int = MEASURED) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._command, self._logs, self._niceness = command, logs, niceness
        self._running: list[NodeProcess] = []

    async def python(
        self,
        node: str,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        niceness: int | None = None,
    ) -> NodeProcess:
        """Run Python at a node, with these variables beside those of this process.

        descriptors: open files and sockets it inherits. niceness: another than the others'.
        """
        log = self._logs / f"{name}.log"
        nice = self._niceness if niceness is None else niceness
        command = [*(("nice", "-n", str(nice)) if nice else ()), sys.executable, *arguments]
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *self._command(node, *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                # Where the kernel groups processes by session, niceness counts within one, and each group has its own.
                start_new_session=nice != 0,
                process_group=None if nice else 0,
                env=os.environ | dict(environment or {}),
                pass_fds=tuple(descriptors),
            )
        if nice:
            _set_group_niceness(process.pid, nice)
        started = NodeProcess(name, process, log)
        self._running.append(started)
        return started

    async def job(self, node: str, name: str, module: str, job: msgspec.Struct, limit: float) -> NodeProcess:
        """Run a module that reads a job, as JSON on one line, and says when it is ready; wait for that."""
        process = await self.python(node, name, "-m", module)
        await process.tell(msgspec.json.encode(job))
        await process.said(READY, limit)
        return process

    async def end(self) -> None:
        """End all of them at once."""
        await asyncio.gather(*(process.end() for process in self._running))


def _set_group_niceness(pid: int, niceness: int) -> None:
    """Give a session's group the niceness of its processes."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


@contextlib.asynccontextmanager
async def node_processes(
    command: Callable[..., list[str]], logs: Path, *, niceness: int = MEASURED
) -> AsyncIterator[NodeProcesses]:
    """Processes that end with the block."""
    processes = NodeProcesses(command, logs, niceness=niceness)
    try:
        yield processes
    finally:
        await processes.end()
