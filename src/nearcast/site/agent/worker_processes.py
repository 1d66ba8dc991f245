"""The worker processes of a site: started, supervised, commanded and stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.domain.names import check_name
from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import call
from nearcast.nats.tasks import gather_or_cancel, retry
from nearcast.protocol.worker import SiteLease, WorkerAssignment, WorkerCommand, WorkerStats
from nearcast.site.processor_user import processor_user, require_access
from nearcast.site.supervisor import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection
    from nearcast.site.agent.assignments import RunningTopic
    from nearcast.site.site_lease import SiteLeaseMachine

__all__ = ["WorkerProcesses"]

_log = logging.getLogger(__name__)
_START_LIMIT = 60.0
_COMMAND_LIMIT = 20.0
_STATS_LIMIT = 2.0
_LEASE_LIMIT, _ANSWER_LIMIT = 1.0, 3.0


class WorkerProcesses:
    """The workers of one site, by name."""

    def __init__(
        self,
        site: SiteSpec,
        connection: Connection,
        folder: Path,
        modules: Sequence[str],
        search_path: Sequence[str],
        lease: SiteLeaseMachine,
        credentials: str = "",
        limits: ProcessorLimits | None = None,
    ) -> None:
        self._credentials, self._limits = credentials, limits or ProcessorLimits()
        if modules:
            require_access(processor_user(self._limits.user), (Path(sys.executable), folder))
        self._site, self._connection, self._folder, self._lease = site, connection, folder, lease
        self._modules, self._search_path = list(modules), list(search_path)
        self._starting = asyncio.Lock()
        self.processes: dict[str, SupervisedProcess] = {}

    @property
    def has_processors(self) -> bool:
        """Whether there is user code to run."""
        return bool(self._modules)

    async def ensure(self, worker: str, topics: Iterable[RunningTopic], *, configured: bool = False) -> None:
        """Start a worker with these topics unless it runs. configured: they must have processors."""
        async with self._starting:
            if worker in self.processes:
                return
            check_name(worker, "worker")  # it names files
            if len(self.processes) >= self._site.max_workers:
                raise NearcastError(
                    f"site {self._site.name} runs {len(self.processes)} workers, its `max_workers`; {worker} is refused"
                )
            process = SupervisedProcess(
                f"{self._site.name}/{worker}",
                [sys.executable, "-m", "nearcast.site.worker"],
                self._folder / f"{worker}.log",
                ready=lambda: self._wait_ready(worker),
                stdin=self._assignment(worker, topics, configured),
                answers=lambda: self._answers(worker),
                # At once: the next one answers to the same name, and has the same spools.
                orphaned=signal.SIGKILL,
            )
            self.processes[worker] = process
            try:
                await process.start()
            except BaseException:
                del self.processes[worker]
                raise

    def set_topics(self, worker: str, topics: Iterable[RunningTopic]) -> None:
        """The topics with which a worker that dies is started again."""
        if worker in self.processes:
            self.processes[worker].stdin = self._assignment(worker, topics)

    async def command(self, worker: str, command: WorkerCommand) -> None:
        """Have a worker execute a command."""
        subject = subjects.worker_command(self._site.name, worker, command.verb)
        try:
            await call(self._connection, subject, command, NoneType, timeout=_COMMAND_LIMIT, encoding="msgpack")
        except NearcastError as error:
            raise NearcastError(f"{self._site.name}/{worker}: {error}") from error

    async def stats(self) -> list[WorkerStats]:
        """The counts of each worker since it started; one that does not answer is left out."""
        up = [worker for worker, process in self.processes.items() if process.started]
        found = await gather_or_cancel(*(self._stats_or_none(worker) for worker in up))
        return [stats for stats in found if stats is not None]

    async def stop_if(self, worker: str, idle: Callable[[], bool]) -> None:
        """Stop a worker if it is idle, and is not started at the same time."""
        async with self._starting:
            if idle():
                await self.processes.pop(worker).stop()

    async def restart(self) -> None:
        """Restart each worker, with the present files of its modules."""
        async with self._starting:
            for process in self.processes.values():
                await process.stop()
                await process.start()

    async def stop(self) -> None:
        """Stop all workers."""
        await asyncio.gather(*(process.stop() for process in self.processes.values()))
        self.processes.clear()

    def _assignment(self, worker: str, topics: Iterable[RunningTopic], configured: bool = False) -> bytes:
        running = list(topics)
        assignment = WorkerAssignment(
            site=self._site.name,
            worker=worker,
            url=self._site.url,
            run_directory=str(self._folder),
            modules=self._modules,
            search_path=self._search_path,
            topics=[topic.spec for topic in running],
            epochs={topic.spec.name: topic.epoch for topic in running},
            limits=self._limits,
            configured=configured,
            credentials=self._credentials,
        )
        return msgspec.json.encode(assignment)

    async def _wait_ready(self, worker: str) -> None:
        await retry(lambda: self._tell_lease(worker), within=_START_LIMIT, on=NearcastError, pause=0.05)

    async def _answers(self, worker: str) -> None:
        """Tell a worker of the lease, and wait for its answer. A broker that hangs is no evidence against it."""
        try:
            await self._connection.flush(1)
        except (NatsError, TimeoutError, OSError):
            return
        await self._tell_lease(worker, _ANSWER_LIMIT)

    async def tell_lease(self) -> None:
        """Tell all workers of a change of the lease at once; they are told each second anyway."""
        up = [worker for worker, process in self.processes.items() if process.started]
        for result in await asyncio.gather(*(self._tell_lease(worker) for worker in up), return_exceptions=True):
            if isinstance(result, NearcastError):
                _log.debug("lease not sent to a worker: %s", result)
            elif isinstance(result, BaseException):
                raise result

    async def _tell_lease(self, worker: str, limit: float = _LEASE_LIMIT) -> None:
        subject = subjects.worker_command(self._site.name, worker, SiteLease.verb)
        said = SiteLease(self._lease.until)
        await call(self._connection, subject, said, NoneType, timeout=limit, encoding="msgpack")

    async def _stats_or_none(self, worker: str) -> WorkerStats | None:
        subject = subjects.worker(self._site.name, worker)
        try:
            return await call(self._connection, subject, None, WorkerStats, timeout=_STATS_LIMIT)
        except NearcastError as error:
            _log.warning("no statistics of worker %s: %s", worker, error)
            return None
