"""A worker's NATS side.

It takes publications from the local broker as a member of the topics' queue group, keeps them in spools, has the
processor's process run them one at a time, and publishes what comes out. Here are the ways of the messages; how topics
come and go is in `handover` and `handover_executor`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import drop
from nearcast.nats.connection import Connection, ConnectionLostError, open_connection
from nearcast.nats.identity.credentials import read_credentials
from nearcast.nats.rpc import Endpoint, Server
from nearcast.nats.stamp import (
    ANONYMOUS,
    attempt_of,
    dead_letter_block,
    header_block,
    is_forged,
    is_late,
    reason_of,
    stamp_of,
)
from nearcast.nats.tasks import gather_or_cancel
from nearcast.processors import ProcessorError
from nearcast.protocol.marks import Redelivered
from nearcast.protocol.worker import (
    HostTopic,
    LeaveTopic,
    MembersChanged,
    SiteLease,
    SpoolPageRequest,
    TopicWork,
    WorkerAssignment,
    WorkerStats,
)
from nearcast.site.processor_user import processor_user
from nearcast.site.worker.durable_intake import DurableIntake
from nearcast.site.worker.handover_executor import HandoverExecutor
from nearcast.site.worker.mark_log import MarkLog
from nearcast.site.worker.outcomes import Outcomes
from nearcast.site.worker.processing_queue import ProcessingQueue
from nearcast.site.worker.processor_main import Setup
from nearcast.site.worker.processor_process import ProcessorProcess, Ticket
from nearcast.site.worker.progress_query import ProgressQuery
from nearcast.site.worker.queue_group import QueueGroups
from nearcast.site.worker.silent_topics import SilentTopics, remove_old_spools
from nearcast.site.worker.spool_folder import sole_user
from nearcast.site.worker.topics import HostedTopic, TopicFamily, TopicTable

if TYPE_CHECKING:
    from nearcast.site.worker.handover_events import HandoverMessage

__all__ = ["Worker", "run_worker"]

_log = logging.getLogger(__name__)


async def run_worker(assignment: WorkerAssignment) -> None:
    """Connect to the site's broker, and work until cancelled."""
    name = f"{assignment.site}/{assignment.worker}"
    credentials = read_credentials(assignment.credentials) if assignment.credentials else None
    folder = Path(assignment.run_directory) / f"spools-{assignment.worker}"
    async with sole_user(folder):

        async def lost() -> None:
            # The next link must not bring marks whose notifications the lost one may have swallowed.
            connection.forget_unsent_to(subjects.marks(""))

        connection = await open_connection(
            [assignment.url], name=name, echo=False, timeout=30, credentials=credentials, on_disconnect=lost
        )
        try:
            await Worker(assignment, connection, folder).run()
        finally:
            await connection.close()


class Worker:
    """Publications in, notifications out."""

    def __init__(self, assignment: WorkerAssignment, connection: Connection, folder: Path) -> None:
        self._assignment, self._connection, self._folder = assignment, connection, folder
        site, self._anonymous = assignment.site, 0
        self._stats = WorkerStats(worker=assignment.worker)
        setup = Setup(assignment.modules, assignment.search_path, assignment.limits)
        self._process = ProcessorProcess(setup, self._done, self._failed, self._killed)
        user = processor_user(assignment.limits.user)
        self._table = TopicTable(self._folder, self._process, user.pw_gid if user is not None else None)
        self._topics = self._table.by_subject
        self._groups = QueueGroups(
            site, connection, self._table, published=self._published, redelivered=self._redelivered
        )
        self._marks = MarkLog(
            site,
            assignment.worker,
            self._groups.has_lease,
            lambda: connection.link if connection.is_connected else None,
        )
        self._outcomes = Outcomes(site, connection, self._send, self._marks, self._stats)
        self._queue = ProcessingQueue(self._process, self._outcomes.overflowed)
        self._intake = DurableIntake(self._queue, self._marks)
        self._handover = HandoverExecutor(
            connection,
            self._table,
            self._queue,
            self._groups,
            self._intake,
            self._send,
            self._stats,
            process=self._process_handed_over,
            copied=self._copied,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        remove_old_spools(self._folder)
        server = Server(self._connection, self._endpoints(), "nearcast-worker")
        started = asyncio.Event()
        try:
            # No TaskGroup: it cancels a task once, and waits forever for one that lost its cancellation.
            await gather_or_cancel(
                self._process.run(started.set),
                self._marks.run(self._connection),
                self._intake.run(self._table),
                ProgressQuery(self._assignment.site, self._connection, self._intake).run(self._table),
                self._outcomes.run(),
                SilentTopics(self._table, self._queue).run(),
                self._begin(started, server),
            )
        finally:
            await server.stop()
            await self._groups.stop()
            await self._handover.stop()
            if self._connection.is_connected:
                await self._marks.publish(self._connection)

    async def _begin(self, started: asyncio.Event, server: Server) -> None:
        """Once the processors are loaded: host the topics, then answer."""
        assignment = self._assignment
        await started.wait()
        for spec in assignment.topics:
            try:
                await self._handover.handle(HostTopic(spec, assignment.epochs.get(spec.name, 0)))
            except ProcessorError as error:  # the other topics continue; the coordinator shows it
                if assignment.configured:
                    raise
                _log.error("%s", error)
        handed_over = subjects.handover(assignment.site, assignment.worker, ">")
        await self._connection.subscribe_raw(handed_over, self._handover.handed_over)
        await server.start()
        await self._connection.flush()

    def _endpoints(self) -> list[Endpoint]:
        site, name = self._assignment.site, self._assignment.worker
        handlers: dict[Any, Any] = dict.fromkeys((HostTopic, LeaveTopic, MembersChanged), self._handover.handle)
        handlers[SpoolPageRequest] = self._handover.answer_page
        handlers[SiteLease] = self._groups.handle
        return [
            Endpoint("stats", subjects.worker(site, name), None, self._answer_stats),
            *(
                Endpoint(kind.verb, subjects.worker_command(site, name, kind.verb), kind, handler, "msgpack")
                for kind, handler in handlers.items()
            ),
        ]

    # Messages

    def _published(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        message_id = stamp_of(headers)
        topic = self._topics.get(subject) or self._new_topic(subject, message_id, payload)
        if topic is None:
            return
        if topic.publisher and self._is_forged(topic, message_id, payload):
            return
        now = time.monotonic()
        if topic.durable and not self._groups.has_lease():  # it stays unmarked: a store gives it to the owner
            self._stats.unowned += 1
            return
        if not topic.machine.take_publication(topic.name, message_id, payload, now):
            self._stats.duplicates += 1
            return
        message_id = message_id or self._own_id()
        if topic.machine.sends_copies:
            self._send(topic.copies, header_block(message_id), payload)
            self._stats.copies_sent += 1
        self._intake.take(topic, message_id, payload, now, int(is_late(headers, message_id)))

    def _new_topic(self, subject: str, message_id: bytes, payload: bytes) -> HostedTopic | None:
        """The topic of a subject that is new here. When it cannot be taken, its publication becomes a dead letter."""
        try:
            return self._table.topic_for(subject)
        except (NearcastError, OSError) as error:
            drop("publication", subject, error)
            self._stats.dead_letters += 1
            block = dead_letter_block(message_id or self._own_id(), str(error))
            self._send(subjects.dead_letters(subjects.topic_of(subject)), block, payload)
            return None

    def _is_forged(self, topic: HostedTopic, message_id: bytes, payload: bytes) -> bool:
        """Whether the id names another publisher than the topic does. Such a publication becomes a dead letter."""
        if not is_forged(topic.name, message_id):
            return False
        drop("publication", topic.name, f"its id {message_id.decode(errors='replace')!r} names another publisher")
        self._stats.forged += 1
        if not topic.durable or self._groups.has_lease():  # else a store gives it to the owner, who says so
            self._outcomes.refused(topic, message_id, payload, f"its topic is of publisher {topic.publisher}")
        return True

    def _copied(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic = self._topics.get(subject) or self._table.topic_for(subject)
        self._stats.copies_received += 1
        message_id, now = stamp_of(headers), time.monotonic()
        self._intake.copied(topic, message_id, now)
        if topic.machine.take_copy(topic.name, message_id, payload, now):
            self._queue.put(topic, message_id, payload, None)

    def _redelivered(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic, message_id = self._table.topic_for(subject), stamp_of(headers)
        if not self._groups.has_lease():
            self._stats.unowned += 1
            return
        if topic.publisher and self._is_forged(topic, message_id, payload):
            answer = Redelivered.KNOWN
        else:
            take = self._intake.retried if reason_of(headers) else self._intake.redelivered
            answer = take(topic, message_id, payload, attempt_of(headers), time.monotonic())
        if answer == Redelivered.TAKEN:
            self._stats.late += 1
            if topic.machine.sends_copies:
                self._send(topic.copies, header_block(message_id), payload)
                self._stats.copies_sent += 1
        if reply and subjects.is_answerable(reply):
            self._send(reply, b"", answer)

    def _process_handed_over(self, publication: HandoverMessage) -> None:
        topic = self._table.topic_for(subjects.publications(publication.topic))
        if topic.publisher and self._is_forged(topic, publication.id, publication.payload):
            return
        if topic.durable and not self._groups.has_lease():
            self._stats.unowned += 1
        else:
            self._intake.take(topic, publication.id or self._own_id(), publication.payload, time.monotonic())

    def _send(self, subject: str, headers: bytes, payload: bytes, reply: str = "") -> None:
        """Send a message, or count it as dropped when no broker can be reached for too long."""
        try:
            self._connection.send(subject, headers, payload, reply)
        except ConnectionLostError as error:
            self._stats.dropped += 1
            _log.error("%s: not sent: %s", subject, error)

    def _done(self, ticket: Ticket, notifications: list[bytes]) -> None:
        self._outcomes.done(self._table.by_number[ticket.topic], ticket, notifications)
        if self._queue.waiting:
            self._queue.advance()

    def _failed(self, ticket: Ticket, reason: str) -> None:
        self._outcomes.failed(self._table.by_number[ticket.topic], ticket, reason)
        self._queue.advance()

    def _killed(self, ticket: Ticket) -> Ticket | None:
        return self._outcomes.killed(self._table.by_number[ticket.topic], ticket)

    def _own_id(self) -> bytes:
        """An id for a publication that came without one, from a device that does not use the SDK."""
        self._anonymous += 1
        return b"%b%b:%d:%d" % (ANONYMOUS, self._assignment.site.encode(), time.time_ns() // 1000, self._anonymous)

    # Figures

    async def _answer_stats(self, request: None) -> WorkerStats:
        self._stats.processor_pid = self._process.pid or 0
        self._stats.restarts = self._process.restarts
        self._stats.processors = [spec.pattern for spec in self._process.processors]
        families = self._table.families
        self._stats.leaving = sum(not family.machine.is_hosted for family in families.values())
        self._stats.held = sum(family.machine.held for family in families.values())
        self._stats.topics = {name: self._work(family) for name, family in families.items() if family.machine.is_hosted}
        return self._stats

    def _work(self, family: TopicFamily) -> TopicWork:
        removed = family.removed
        return TopicWork(
            family.machine.epoch,
            sum(topic.processed for topic in family.topics) + removed.processed,
            sum(self._process.busy[topic.number] for topic in family.topics) + removed.busy_s,
            sum(self._queue.pending(family)),
            sum(topic.dead_letters for topic in family.topics) + removed.dead_letters,
            sum(topic.deferred for topic in family.topics) + removed.deferred,
            [sum(counts) for counts in zip(removed.latency, *(topic.latency for topic in family.topics), strict=True)],
        )
