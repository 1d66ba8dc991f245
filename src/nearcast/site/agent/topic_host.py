"""The topics that a site's workers run: those that the registry assigns, or `nearcast.toml` without one.

Commands come from the leading coordinator; `term_check` decides which one that is. The registry's last
assignments are kept in a file, so that a site that starts while no coordinator answers continues with them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.domain.worker_id import WorkerId
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.identity.credentials import write_secret
from nearcast.nats.rpc import Endpoint, Server
from nearcast.nats.tasks import KeyedLocks
from nearcast.protocol.control import Assignments, StartTopic, StopTopic, TopicRecord
from nearcast.protocol.worker import HostTopic, LeaveTopic, MembersChanged
from nearcast.site.agent.assignments import (
    Host,
    Release,
    RunningTopic,
    UpdateMembers,
    assignment_changes,
    worker_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from nearcast.nats.connection import Connection
    from nearcast.site.agent.term_check import TermCheck
    from nearcast.site.agent.worker_processes import WorkerProcesses

__all__ = ["TopicHost"]

_log = logging.getLogger(__name__)


class TopicHost:
    """One site's topics and the workers that run them.

    configured: the records to begin with. settle: gives the seconds until an ended subscription is known at every site.
    on_records: called with all records after they changed.
    """

    def __init__(
        self,
        site: str,
        connection: Connection,
        workers: WorkerProcesses,
        configured: Iterable[TopicRecord],
        folder: Path,
        settle: Callable[[], float],
        on_records: Callable[[list[TopicRecord]], None],
        terms: TermCheck,
    ) -> None:
        self._site, self._connection, self._workers = site, connection, workers
        self._records = {record.spec.name: record for record in configured}
        self._file = folder / "assignments.json"
        self.settle, self._on_records = settle, on_records
        self._terms = terms
        self.revision = -1
        self.state = ""  # the identity of the registry that the revision is of
        self.running: dict[str, RunningTopic] = {}
        self._removed: set[str] = set()
        self._released: dict[str, int] = {}  # the epoch in which a topic was released: older records are out of date
        self._superseded: set[tuple[str, str]] = set()  # topics and the workers of this site they moved away from
        self._idle: set[str] = set()
        self._locks = KeyedLocks()
        endpoints = [
            Endpoint("start", subjects.site_command(site, "start"), StartTopic, self._handle_start),
            Endpoint("stop", subjects.site_command(site, "stop"), StopTopic, self._handle_stop),
        ]
        self._server = Server(connection, endpoints, "nearcast-site")

    @property
    def has_saved_assignments(self) -> bool:
        """Whether a registry ever assigned topics to this site."""
        return self._file.exists()

    @property
    def term(self) -> int:
        """The term of the coordinator that this site follows."""
        return self._terms.term

    @property
    def records(self) -> list[TopicRecord]:
        """All topics, as far as this site knows."""
        return list(self._records.values())

    def load_saved(self) -> None:
        """Know the assignments that were saved, if any: a registry that has lost its state asks for them."""
        if self.has_saved_assignments:
            saved = msgspec.json.decode(self._file.read_bytes(), type=Assignments)
            self._records, self._terms.term = {}, saved.term
            self._apply_records(saved)

    async def start(self, assignments: Assignments | None) -> None:
        """Start the given assignments of the registry; else the saved ones; else those of the configuration."""
        if assignments is None or not await self._follows(assignments):
            self.load_saved()
        else:
            self._records = {}
            self._apply_records(assignments)
        if self.revision >= 0:
            self._on_records(self.records)
        for record in self.records:
            worker = worker_of(record, self._site)
            if worker:
                self.running[record.spec.name] = RunningTopic(record.spec, worker, record.epoch)
        for worker in sorted({running.worker for running in self.running.values()}):
            await self._workers.ensure(worker, self._topics_of(worker), configured=self.revision < 0)
        await self._server.start()
        await self._connection.flush()

    async def stop(self) -> None:
        """Refuse commands and stop the workers."""
        await self._server.stop()
        await self._workers.stop()

    async def apply(self, assignments: Assignments) -> bool:
        """Run the topics that the registry assigns to this site. Whether all that it takes away were stopped."""
        if not await self._follows(assignments):
            return False
        if self.revision < 0 or assignments.state != self.state:
            self._records = {}  # the registry replaces the configuration, or another registry that was lost
        self._apply_records(assignments)
        saved = Assignments(self.term, self.revision, self.records, state=self.state)
        write_secret(self._file, msgspec.json.encode(saved).decode())
        self._on_records(self.records)
        return await self.reconcile()

    async def reconcile(self) -> bool:
        """Change what runs here to what the records say; what fails is tried again with the next report.

        Whether all topics were stopped that other sites run now.

        Commands may come in between: each change checks again, once it has the topic's lock, whether it still applies.
        """
        current = [record for record in self.records if record.epoch >= self._released.get(record.spec.name, 0)]
        changes = assignment_changes(self._site, self.running, current, self._removed)
        released = True
        for change in [*self._superseded_releases(current), *changes]:
            try:
                match change:
                    case Release(topic, worker, epoch, towards):
                        await self._release(topic, worker, epoch, towards)
                    case Host(record, worker, source):
                        await self._host_assigned(record, worker, source)
                    case UpdateMembers(topic, worker, epoch, members):
                        await self._update_members(topic, worker, epoch, members)
            except NearcastError as error:
                _log.warning("%s: %s", self._site, error)
                released = released and not isinstance(change, Release)
        return released

    async def tell_lease(self) -> None:
        """Tell the workers until when they may own durable topics."""
        await self._workers.tell_lease()

    async def stop_idle_workers(self) -> None:
        """Stop workers that were idle at the last call, too: they have finished what they left by now. One is kept."""
        idle = self._idle
        self._idle = {worker for worker in self._workers.processes if self._is_idle(worker)}
        for worker in sorted(idle & self._idle, reverse=True):
            if len(self._workers.processes) > 1:  # the last one is kept: see `ensure_spare_worker`
                await self._workers.stop_if(worker, partial(self._is_idle, worker))

    async def ensure_spare_worker(self) -> None:
        """Have a worker ready for a topic that moves here: starting one takes longer than all else of a move."""
        if not self._workers.processes and self._workers.has_processors:
            await self._workers.ensure("worker-0", [])

    async def _follows(self, assignments: Assignments) -> bool:
        """Whether the coordinator that sent them is the one to follow."""
        try:
            await self._terms.require(assignments.term)
        except NearcastError as error:
            _log.warning("%s: assignments refused: %s", self._site, error)
            return False
        return True

    def _apply_records(self, assignments: Assignments) -> None:
        self.revision = assignments.revision
        self.state = assignments.state
        for record in assignments.records:
            if record.removed:
                self._records.pop(record.spec.name, None)
                self._removed.add(record.spec.name)
            else:
                self._records[record.spec.name] = record
                self._removed.discard(record.spec.name)

    def _superseded_releases(self, records: list[TopicRecord]) -> Iterator[Release]:
        """Topics that moved from one worker of this site to another, and that the old one still has."""
        for record in records:
            name, here = record.spec.name, self.running.get(record.spec.name)
            if here is not None and here.epoch <= record.epoch and worker_of(record, self._site) == here.worker:
                for worker in [worker for topic, worker in self._superseded if topic == name]:
                    yield Release(name, worker, record.epoch, WorkerId(self._site, here.worker))

    async def _host_assigned(self, record: TopicRecord, worker: str, source: WorkerId | None) -> None:
        """The first member starts without another's spool if need be: members that start together have none to copy."""
        try:
            await self._host(record, worker, source)
        except NearcastError:
            if source is None or record.members[0].site != self._site:
                raise
            await self._host(record, worker, None)

    async def _host(self, record: TopicRecord, worker: str, source: WorkerId | None) -> None:
        spec, epoch = record.spec, record.epoch
        async with self._locks[spec.name]:
            here = self.running.get(spec.name)
            newest = max(here.epoch if here is not None else 0, self._released.get(spec.name, 0))
            if epoch < newest:
                raise NearcastError(f"topic {spec.name}: epoch {epoch} is over; epoch {newest} was seen here")
            await self._workers.ensure(worker, self._topics_of(worker))
            await self._workers.command(worker, HostTopic(spec, epoch, source, self.settle() / 2))
            self._set_running(RunningTopic(spec, worker, epoch))

    async def _update_members(self, topic: str, worker: str, epoch: int, members: int) -> None:
        async with self._locks[topic]:
            here = self.running.get(topic)
            if here is not None and here.worker == worker and here.epoch < epoch:
                await self._workers.command(worker, MembersChanged(topic, epoch, members))
                self._set_running(RunningTopic(here.spec, worker, epoch))

    async def _release(self, topic: str, worker: str, epoch: int, towards: WorkerId | None) -> None:
        async with self._locks[topic]:
            current = self.running.get(topic)
            if worker in self._workers.processes:
                await self._workers.command(worker, LeaveTopic(topic, epoch, towards, self.settle()))
            self._superseded.discard((topic, worker))
            if current is not None and current.worker == worker:
                del self.running[topic]
                self._released[topic] = epoch
                self._workers.set_topics(worker, self._topics_of(worker))

    def _set_running(self, running: RunningTopic) -> None:
        topic = running.spec.name
        before = self.running.get(topic)
        self.running[topic] = running
        self._superseded.discard((topic, running.worker))
        self._workers.set_topics(running.worker, self._topics_of(running.worker))
        if before is not None and before.worker != running.worker:
            self._superseded.add((topic, before.worker))  # until it has left
            self._workers.set_topics(before.worker, self._topics_of(before.worker))

    def _topics_of(self, worker: str) -> list[RunningTopic]:
        return [running for running in self.running.values() if running.worker == worker]

    def _is_idle(self, worker: str) -> bool:
        return not self._topics_of(worker) and all(other != worker for _, other in self._superseded)

    async def _handle_start(self, command: StartTopic) -> None:
        await self._terms.require(command.term)
        await self._host(TopicRecord(command.spec, command.epoch), command.worker, command.source)

    async def _handle_stop(self, command: StopTopic) -> None:
        await self._terms.require(command.term)
        await self._release(command.topic, command.worker, command.epoch, command.towards)
