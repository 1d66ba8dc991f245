"""The workers of a site and the topics they run: as the registry says, or as `nearcast.toml` does while there is none.

Commands come from the coordinator that leads; one with a lower term than any seen is refused. What the registry said
last is kept in a file, so that a site that starts while no coordinator answers goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import defaultdict
from types import NoneType
from typing import TYPE_CHECKING

import msgspec

from nearcast.domain.worker_id import WorkerId
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint, Server, StaleTermError, call
from nearcast.nats.tasks import gather_or_cancel
from nearcast.protocol.control import (
    Assignments,
    StartTopic,
    StopTopic,
    TopicRecord,
)
from nearcast.protocol.worker import (
    HostTopic,
    LeaveTopic,
    MembersChanged,
    WorkerAssignment,
    WorkerCommand,
    WorkerStats,
)
from nearcast.site.assignments import Drop, Inform, Running, Take, changes, worker_of
from nearcast.site.process import Supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection

__all__ = ["Hosting", "configured_records"]

_log = logging.getLogger(__name__)
_START_LIMIT = 60.0
_ANSWER_LIMIT = 20.0
_SETTLE = 1.0


def configured_records(deployment: Deployment) -> list[TopicRecord]:
    """The topics of a configuration, dealt out to the workers of their sites; no more workers than topics."""
    workers: dict[tuple[str, str], str] = {}
    for site in deployment.sites:
        managed = deployment.managed_at(site.name)
        for n, topic in enumerate(managed):
            workers[site.name, topic.name] = f"worker-{n % min(site.workers, len(managed))}"
    return [
        TopicRecord(topic, 1, tuple(WorkerId(site, workers[site, topic.name]) for site in topic.managed_by))
        for topic in deployment.topics
    ]


class Hosting:
    """One site's workers and topics."""

    def __init__(
        self, deployment: Deployment, site: SiteSpec, connection: Connection, folder: Path, search_path: Sequence[str]
    ) -> None:
        self._site, self._connection, self._folder = site, connection, folder
        self._modules, self._search_path = list(deployment.modules), list(search_path)
        self._known = {record.spec.name: record for record in configured_records(deployment)}
        self.term = 0
        self.revision = -1
        self.settle = _SETTLE
        self.on_records: Callable[[list[TopicRecord]], None] = lambda records: None
        self.workers: dict[str, Supervised] = {}
        self.running: dict[str, Running] = {}
        self._removed: set[str] = set()
        self._left: dict[str, int] = {}  # epoch with which a topic was left: older records of it are history
        self._behind: set[tuple[str, str]] = set()  # topics and the workers of this site they moved away from
        self._idle: set[str] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._launching = asyncio.Lock()
        endpoints = [
            Endpoint("start", subjects.site_command(site.name, "start"), StartTopic, self._start_topic),
            Endpoint("stop", subjects.site_command(site.name, "stop"), StopTopic, self._stop_topic),
        ]
        self._server = Server(connection, endpoints, "nearcast-site")

    @property
    def _memory(self) -> Path:
        return self._folder / "assignments.json"

    @property
    def has_known_a_coordinator(self) -> bool:
        """Whether a registry ever said what to run here."""
        return self._memory.exists()

    @property
    def records(self) -> list[TopicRecord]:
        """All topics there are, as far as this site knows."""
        return list(self._known.values())

    def _take_in(self, answer: Assignments) -> None:
        self.term, self.revision = max(self.term, answer.term), answer.revision
        for record in answer.records:
            if record.removed:
                self._known.pop(record.spec.name, None)
                self._removed.add(record.spec.name)
            else:
                self._known[record.spec.name] = record
                self._removed.discard(record.spec.name)

    async def start(self, assignments: Assignments | None) -> None:
        """Start what the registry says; else what it said last; else what the configuration says."""
        if assignments is None and self.has_known_a_coordinator:
            assignments = msgspec.json.decode(self._memory.read_bytes(), type=Assignments)
        if assignments is not None:
            self._known = {}
            self._take_in(assignments)
            self.on_records(self.records)
        for record in self.records:
            worker = worker_of(record, self._site.name)
            if worker:
                self.running[record.spec.name] = Running(record.spec, worker, record.epoch)
        for name in sorted({running.worker for running in self.running.values()}):
            await self._worker(name)
        await self._server.start()
        await self._connection.flush()

    async def stop(self) -> None:
        """End the workers."""
        await self._server.stop()
        await asyncio.gather(*(worker.stop() for worker in self.workers.values()))
        self.workers.clear()

    async def stats(self) -> list[WorkerStats]:
        """What each worker has done since it started; one that does not answer now is left out."""
        up = [worker for worker, process in self.workers.items() if process.started]
        found = await gather_or_cancel(*(self._stats_of(worker) for worker in up))
        return [stats for stats in found if stats is not None]

    async def follow(self, answer: Assignments) -> None:
        """Do what the registry says: first stop what this site should no longer run."""
        if answer.term < self.term:
            return
        if self.revision < 0:
            self._known = {}  # the registry's word takes the place of the configuration
        self._take_in(answer)
        self._memory.write_bytes(msgspec.json.encode(Assignments(self.term, self.revision, self.records)))
        self.on_records(self.records)
        await self.reconcile()

    async def reconcile(self) -> None:
        """Change what runs here to what the records say; what cannot be done now is tried with the next report.

        Commands may come in between: each change looks again, once it has the topic's lock, whether it still applies.
        """
        current = [record for record in self.records if record.epoch >= self._left.get(record.spec.name, 0)]
        due = [*self._left_over(current), *changes(self._site.name, self.running, current, self._removed)]
        for change in due:
            try:
                match change:
                    case Drop(topic, worker, epoch, towards):
                        await self._drop(topic, worker, epoch, towards)
                    case Take(record, worker, source):
                        await self._take(record, worker, source)
                    case Inform(topic, worker, epoch, members):
                        await self._inform(topic, worker, epoch, members)
            except NearcastError as error:
                _log.warning("%s: %s", self._site.name, error)

    def _left_over(self, records: list[TopicRecord]) -> Iterator[Drop]:
        """Topics that moved from one worker of this site to another, and that the old one still has."""
        for record in records:
            name, here = record.spec.name, self.running.get(record.spec.name)
            if here is not None and here.epoch <= record.epoch and worker_of(record, self._site.name) == here.worker:
                for worker in [worker for topic, worker in self._behind if topic == name]:
                    yield Drop(name, worker, record.epoch, WorkerId(self._site.name, here.worker))

    async def _take(self, record: TopicRecord, worker: str, source: WorkerId | None) -> None:
        spec, epoch = record.spec, record.epoch
        async with self._locks[spec.name]:
            here = self.running.get(spec.name)
            newest = max(here.epoch if here is not None else 0, self._left.get(spec.name, 0))
            if epoch < newest:
                raise NearcastError(f"topic {spec.name}: epoch {epoch} is over; epoch {newest} was seen here")
            await self._worker(worker)
            await self._tell(worker, HostTopic(spec, epoch, source, self.settle / 2))
            self._note(Running(spec, worker, epoch))

    async def _inform(self, topic: str, worker: str, epoch: int, members: int) -> None:
        async with self._locks[topic]:
            here = self.running.get(topic)
            if here is not None and here.worker == worker and here.epoch < epoch:
                await self._tell(worker, MembersChanged(topic, epoch, members))
                self._note(Running(here.spec, worker, epoch))

    async def _drop(self, topic: str, worker: str, epoch: int, towards: WorkerId | None) -> None:
        async with self._locks[topic]:
            current = self.running.get(topic)
            if worker in self.workers:
                await self._tell(worker, LeaveTopic(topic, epoch, towards, self.settle))
            self._behind.discard((topic, worker))
            if current is not None and current.worker == worker:
                del self.running[topic]
                self._left[topic] = epoch
                self._brief(worker)

    def _note(self, running: Running) -> None:
        """Remember what runs where, and have a worker that dies come up again with it."""
        before = self.running.get(running.spec.name)
        self.running[running.spec.name] = running
        self._behind.discard((running.spec.name, running.worker))
        self._brief(running.worker)
        if before is not None and before.worker != running.worker:
            self._behind.add((running.spec.name, before.worker))  # until it has left
            self._brief(before.worker)

    def _brief(self, worker: str) -> None:
        if worker in self.workers:
            self.workers[worker].stdin = msgspec.json.encode(self._assignment(worker))

    def _assignment(self, worker: str) -> WorkerAssignment:
        topics = [running for running in self.running.values() if running.worker == worker]
        return WorkerAssignment(
            site=self._site.name,
            worker=worker,
            url=self._site.url,
            run_directory=str(self._folder),
            modules=self._modules,
            search_path=self._search_path,
            topics=[running.spec for running in topics],
            epochs={running.spec.name: running.epoch for running in topics},
        )

    async def _worker(self, name: str) -> None:
        """Start a worker unless it is there."""
        async with self._launching:
            if name in self.workers:
                return
            process = Supervised(
                f"{self._site.name}/{name}",
                [sys.executable, "-m", "nearcast.site.worker"],
                self._folder / f"{name}.log",
                ready=lambda: self._worker_answers(name),
                stdin=msgspec.json.encode(self._assignment(name)),
            )
            self.workers[name] = process
            try:
                await process.start()
            except BaseException:
                del self.workers[name]
                raise

    async def retire_idle_workers(self) -> None:
        """End workers that had nothing to do at the last look already: what they left then, they have finished."""
        idle = self._idle
        self._idle = {name for name in self.workers if not self._has_work(name)}
        for name in idle & self._idle:
            async with self._launching:
                if not self._has_work(name):
                    await self.workers.pop(name).stop()

    def _has_work(self, worker: str) -> bool:
        return any(running.worker == worker for running in self.running.values()) or any(
            left == worker for _, left in self._behind
        )

    async def _worker_answers(self, worker: str) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + _START_LIMIT
        while True:
            try:
                await self._ask_worker(worker)
                return
            except NearcastError:
                if clock() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _stats_of(self, worker: str) -> WorkerStats | None:
        try:
            return await self._ask_worker(worker)
        except NearcastError as error:
            _log.warning("%s", error)
            return None

    async def _ask_worker(self, worker: str) -> WorkerStats:
        return await call(self._connection, subjects.worker(self._site.name, worker), None, WorkerStats, timeout=2)

    async def _tell(self, worker: str, command: WorkerCommand) -> None:
        subject = subjects.worker_command(self._site.name, worker, command.verb)
        try:
            await call(self._connection, subject, command, NoneType, timeout=_ANSWER_LIMIT, encoding="msgpack")
        except NearcastError as error:
            raise NearcastError(f"{self._site.name}/{worker}: {error}") from error

    async def _start_topic(self, command: StartTopic) -> None:
        self._check_term(command.term)
        await self._take(TopicRecord(command.spec, command.epoch), command.worker, command.source)

    async def _stop_topic(self, command: StopTopic) -> None:
        self._check_term(command.term)
        await self._drop(command.topic, command.worker, command.epoch, command.towards)

    def _check_term(self, term: int) -> None:
        if term < self.term:
            raise StaleTermError(f"term {term} is over; term {self.term} leads", self.term)
        self.term = term
