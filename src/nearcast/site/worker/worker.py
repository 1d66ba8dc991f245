"""A worker's NATS side.

It takes publications from the local broker as a member of the topics' queue group, keeps them in spools, has the
processor's process run them one at a time, and publishes what comes out. Topics come and go while it runs: `handover`
decides, this does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from nearcast.domain.latency_histogram import bucket, empty
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import RESERVED_BYTES, Connection, ConnectionLostError, open_connection
from nearcast.nats.rpc import Endpoint, Server, call
from nearcast.nats.stamp import (
    ANONYMOUS,
    attempt_of,
    dead_letter_block,
    dead_letter_id,
    header_block,
    late_block,
    notification_id,
    reason_of,
    settlement_block,
    stamp_of,
)
from nearcast.nats.tasks import TaskSet
from nearcast.processors import ProcessorError, find_processor
from nearcast.protocol.marks import Redelivered, Settlement
from nearcast.protocol.worker import (
    HostTopic,
    LeaveTopic,
    MembersChanged,
    SiteLease,
    SpoolPage,
    SpoolPageRequest,
    TopicWork,
    WorkerAssignment,
    WorkerStats,
)
from nearcast.site.site_lease import lease_clock
from nearcast.site.worker import handover_events as ho
from nearcast.site.worker.durable_intake import DurableIntake
from nearcast.site.worker.mark_log import MarkLog
from nearcast.site.worker.processing_queue import ProcessingQueue
from nearcast.site.worker.processor_main import Setup
from nearcast.site.worker.processor_process import ProcessorProcess, Ticket
from nearcast.site.worker.queue_group import QueueGroups
from nearcast.site.worker.topics import HostedTopic, TopicFamily, TopicTable, read_page

if TYPE_CHECKING:
    from nearcast.domain.worker_id import WorkerId

__all__ = ["Worker"]

_log = logging.getLogger(__name__)
_SAMPLED = 4  # one message in so many has its time in the worker taken; a power of two
_PAGE_TIMEOUT = 5.0
_IDLE_POLL = 0.01
_LEASE_CHECK = 0.01  # timers may be early by a clock's resolution
_OVERFLOW = "more publications waited than the worker has memory for"


class Worker:
    """Publications in, notifications out."""

    def __init__(self, assignment: WorkerAssignment) -> None:
        self._assignment = assignment
        self._folder = Path(assignment.run_directory) / f"spools-{assignment.worker}"
        self._anonymous = 0
        self._home = [assignment.site.encode()]
        self._stats = WorkerStats(worker=assignment.worker)
        self._process = ProcessorProcess(Setup(assignment.modules, assignment.search_path), self._done, self._failed)
        self._queue = ProcessingQueue(self._process, self._overflowed)
        self._table = TopicTable(self._folder, self._process)
        self._topics = self._table.by_subject
        self._groups = QueueGroups(self._published, self._redelivered)
        self._marks = MarkLog(assignment.site, assignment.worker, self._groups.has_lease)
        self._intake = DurableIntake(self._queue, self._marks)
        self._commands: dict[Any, list[asyncio.Future[None]]] = {}
        self._tasks = TaskSet()
        self._lease_end: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._largest_payload = 0

    async def run(self) -> None:
        """Work until cancelled."""
        assignment = self._assignment
        site, name = assignment.site, assignment.worker
        self._folder.mkdir(parents=True, exist_ok=True)
        self._connection = await open_connection([assignment.url], name=f"{site}/{name}", echo=False, timeout=30)
        self._largest_payload = self._connection.max_payload - RESERVED_BYTES
        server = Server(self._connection, self._endpoints(), "nearcast-worker")
        started = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._process.run(started.set))
                tasks.create_task(self._marks.run(self._connection))
                tasks.create_task(self._intake.run(self._table))
                await started.wait()
                for spec in assignment.topics:
                    try:
                        await self._handle_command(HostTopic(spec, assignment.epochs.get(spec.name, 0)))
                    except ProcessorError as error:  # the other topics go on; the coordinator shows it
                        if assignment.configured:
                            raise
                        _log.error("%s", error)
                await self._connection.subscribe_raw(subjects.handover(site, name, ">"), self._handed_over)
                await server.start()
                await self._connection.flush()
        finally:
            await server.stop()
            await self._tasks.cancel()
            if self._connection.is_connected:
                await self._marks.publish(self._connection)
            await self._connection.close()

    def _endpoints(self) -> list[Endpoint]:
        site, name = self._assignment.site, self._assignment.worker
        handlers: dict[Any, Any] = dict.fromkeys((HostTopic, LeaveTopic, MembersChanged), self._handle_command)
        handlers[SpoolPageRequest] = self._answer_page
        handlers[SiteLease] = self._handle_lease
        return [
            Endpoint("stats", subjects.worker(site, name), None, self._answer_stats),
            *(
                Endpoint(kind.verb, subjects.worker_command(site, name, kind.verb), kind, handler, "msgpack")
                for kind, handler in handlers.items()
            ),
        ]

    # Messages

    def _published(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic = self._topics.get(subject) or self._table.topic_for(subject)
        message_id = stamp_of(headers)
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
        self._intake.take(topic, message_id, payload, now)

    def _copied(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic = self._topics.get(subject) or self._table.topic_for(subject)
        self._stats.copies_received += 1
        message_id = stamp_of(headers)
        self._intake.copied(topic, message_id)
        if topic.machine.take_copy(topic.name, message_id, payload, time.monotonic()):
            self._queue.put(topic, message_id, payload, None)

    def _redelivered(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        topic, message_id = self._table.topic_for(subject), stamp_of(headers)
        if not self._groups.has_lease():
            self._stats.unowned += 1
            return
        take = self._intake.retried if reason_of(headers) else self._intake.redelivered
        answer = take(topic, message_id, payload, attempt_of(headers), time.monotonic())
        if answer == Redelivered.TAKEN:
            self._stats.late += 1
            if topic.machine.sends_copies:
                self._send(topic.copies, header_block(message_id), payload)
                self._stats.copies_sent += 1
        if reply:
            self._send(reply, b"", answer)

    def _marked_elsewhere(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        self._intake.marked_elsewhere(self._table, payload)

    def _plain_received(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        publication = ho.Publication(subjects.topic_of(subject), stamp_of(headers), payload)
        self._handle(self._table.family_of(publication.topic), ho.PlainReceived(publication))

    def _handed_over(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        publication = ho.Publication(subjects.handed_topic(subject), stamp_of(headers), payload)
        try:
            family = self._table.family_of(publication.topic)
        except NearcastError:
            self._discard(publication)
        else:
            self._handle(family, ho.HandedOver(publication))

    def _discard(self, publication: ho.Publication) -> None:
        self._stats.dropped += 1
        _log.error("dropped a handed-over message: topic %s is not hosted here", publication.topic)

    def _done(self, ticket: Ticket, notifications: list[bytes]) -> None:
        for payload in notifications:
            if len(payload) > self._largest_payload:  # the broker would cut the worker off
                limit = f"at most {self._largest_payload} are allowed"
                self._failed(ticket, f"the processor made a notification of {len(payload)} bytes; {limit}")
                return
        topic, stats = self._table.by_number[ticket.topic], self._stats
        origin, publication = topic.spool.read(ticket.number)
        stats.processed += 1
        topic.processed += 1
        if not topic.processed & (_SAMPLED - 1):
            topic.latency[bucket(1000 * (time.monotonic() - ticket.arrived))] += 1
        if origin.split(b":", 2)[1:2] != self._home:
            stats.delegated += 1
        for n, payload in enumerate(notifications):
            made = notification_id(origin, n)
            headers = late_block(made, ticket.attempt) if ticket.attempt else header_block(made)
            self._send(topic.notifications, headers, payload)
        stats.notified += len(notifications)
        if topic.durable:
            self._finish(topic, origin, publication, ticket.attempt)
        if self._queue.waiting:
            self._queue.advance()

    def _failed(self, ticket: Ticket, reason: str) -> None:
        topic = self._table.by_number[ticket.topic]
        message_id, payload = topic.spool.read(ticket.number)
        _log.warning("topic %s, message %s: %s", topic.name, message_id.decode(errors="replace"), reason)
        self._give_up(topic, message_id, payload, ticket.attempt, reason)
        self._queue.advance()

    def _overflowed(self, topic: HostedTopic, message_id: bytes, payload: bytes, attempt: int) -> None:
        """A publication that there is no room for. One of a durable topic is not marked: a store gives it again."""
        if topic.durable:
            topic.deferred += 1
            self._stats.deferred += 1
        else:
            self._give_up(topic, message_id, payload, attempt, _OVERFLOW)

    def _give_up(self, topic: HostedTopic, message_id: bytes, payload: bytes, attempt: int, reason: str) -> None:
        topic.dead_letters += 1
        self._stats.dead_letters += 1
        self._send(subjects.dead_letters(topic.name), dead_letter_block(message_id, reason, attempt + 1), payload)
        if topic.durable:
            self._finish(topic, message_id, payload, attempt)

    def _finish(self, topic: HostedTopic, message_id: bytes, payload: bytes, attempt: int) -> None:
        """A publication of a durable topic is marked; one that was a dead letter was, and that letter is settled."""
        if message_id in topic.record.retried:
            topic.record.leave(message_id)
            settled = settlement_block(dead_letter_id(message_id, attempt))
            self._send(subjects.settlements(topic.name), settled, Settlement.RETRIED)
        else:
            self._marks.note(topic, message_id, payload)

    def _send(self, subject: str, headers: bytes, payload: bytes) -> None:
        assert self._connection is not None
        try:
            self._connection.send(subject, headers, payload)
        except ConnectionLostError as error:
            self._stats.dropped += 1
            _log.error("%s: not sent: %s", subject, error)

    def _own_id(self) -> bytes:
        """An id for a publication that came without one, from a device that does not use the SDK."""
        self._anonymous += 1
        return b"%b%b:%d:%d" % (ANONYMOUS, self._home[0], time.time_ns() // 1000, self._anonymous)

    # Topics that come and go

    async def _handle_command(self, command: HostTopic | LeaveTopic | MembersChanged | SpoolPageRequest) -> None:
        name = command.spec.name if isinstance(command, HostTopic) else command.topic
        family = self._table.families.get(name)
        if family is None:
            if isinstance(command, SpoolPageRequest):
                raise NearcastError("it does not have the topic")
            if not isinstance(command, HostTopic):
                return
            family = self._new_family(command)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commands.setdefault(command, []).append(answered)
        self._handle(family, command)
        await answered

    def _new_family(self, command: HostTopic) -> TopicFamily:
        processor = find_processor(self._process.processors, command.spec.name)
        family = TopicFamily(command.spec, processor, moved_here=command.source is not None)
        self._table.families[command.spec.name] = family
        return family

    def _handle(self, family: TopicFamily, event: ho.Event) -> None:
        for instruction in family.machine.handle(event, time.monotonic()):
            match instruction:
                case ho.Process(publication):
                    topic = self._table.topic_for(subjects.publications(publication.topic))
                    if topic.durable and not self._groups.has_lease():
                        self._stats.unowned += 1
                        continue
                    self._intake.take(topic, publication.id or self._own_id(), publication.payload, time.monotonic())
                case ho.Forward(towards, publication):
                    headers = header_block(publication.id) if publication.id else b""
                    self._send(subjects.handover(*towards, publication.topic), headers, publication.payload)
                case ho.Keep(publication):
                    topic = self._table.topic_for(subjects.publications(publication.topic))
                    topic.spool.append(publication.id, publication.payload)
                case ho.StartTimer(seconds, later):
                    asyncio.get_running_loop().call_later(seconds, self._handle, family, later)
                case ho.Discard(publication):
                    self._discard(publication)
                case ho.Refuse(command, reason):
                    self._answer(command, NearcastError(reason))
                case ho.Forget(returning):
                    self._table.forget(family)
                    for host in returning:
                        self._handle(self._table.families.get(host.spec.name) or self._new_family(host), host)
                case _:
                    self._tasks.spawn(self._perform(family, instruction), name=f"{family.spec.name}: {instruction}")

    async def _perform(
        self, family: TopicFamily, instruction: ho.Subscribe | ho.Drain | ho.FetchPage | ho.AwaitIdle | ho.Done
    ) -> None:
        """Do what takes a while, and say when it is done."""
        match instruction:
            case ho.Subscribe(role):
                await self._subscribe(family, role)
            case ho.Drain(role):
                await self._drain(family, role)
            case ho.FetchPage(source, request):
                self._handle(family, await self._fetch_page(source, request))
            case ho.AwaitIdle():
                # Polling costs less than an event set for every message.
                while any(self._queue.pending(family)) or family.order.held:  # noqa: ASYNC110
                    await asyncio.sleep(_IDLE_POLL)
                self._handle(family, ho.Idle())
            case ho.Done(command):
                async with family.io_lock:
                    self._answer(command)

    async def _subscribe(self, family: TopicFamily, role: ho.Role) -> None:
        connection, name = self._connection, family.spec.name
        assert connection is not None
        async with family.io_lock:
            if role == "queue":
                await self._groups.enter(connection, family)
            elif role == "copies":
                family.subscriptions[role] = await connection.subscribe_raw(subjects.copies(name), self._copied)
                if family.spec.durable:
                    marks = subjects.marks_of_family(name)
                    family.marks = await connection.subscribe_raw(marks, self._marked_elsewhere)
            else:
                family.subscriptions[role] = await connection.subscribe_raw(
                    subjects.publications(name), self._plain_received
                )
            with contextlib.suppress(NatsError, TimeoutError):  # a broker that is away hears of it when it is back
                await connection.flush()
            self._handle(family, ho.Subscribed(role))

    async def _drain(self, family: TopicFamily, role: ho.Role) -> None:
        assert self._connection is not None
        async with family.io_lock:
            if role == "queue":
                await self._groups.leave(self._connection, family)
            else:
                await self._connection.drain_subscription(family.subscriptions.pop(role))
            if role == "copies" and family.marks is not None:
                await self._connection.drain_subscription(family.marks)
                family.marks = None
            self._handle(family, ho.Drained(role))

    async def _fetch_page(self, source: WorkerId, request: SpoolPageRequest) -> ho.PageReceived | ho.CopyFailed:
        assert self._connection is not None
        subject = subjects.worker_command(*source, request.verb)
        try:
            page = await call(self._connection, subject, request, SpoolPage, timeout=_PAGE_TIMEOUT, encoding="msgpack")
        except NearcastError as error:
            return ho.CopyFailed(f"{source} sends no spool of topic {request.topic}: {error}")
        self._intake.spool_copied(self._table, page)
        return ho.PageReceived(page)

    async def _answer_page(self, request: SpoolPageRequest) -> SpoolPage:
        await self._handle_command(request)
        family = self._table.families.get(request.topic)
        if family is None:
            raise NearcastError("it does not have the topic")
        return read_page(family, request.after, [entry[:3] for entry in self._queue.waiting])

    def _answer(self, command: Any, error: NearcastError | None = None) -> None:
        for answered in self._commands.pop(command, ()):
            if answered.done():
                continue
            if error is None:
                answered.set_result(None)
            else:
                answered.set_exception(error)

    # The site's lease

    async def _handle_lease(self, lease: SiteLease) -> None:
        """The agent tells each second. When its word fails to come, or the lease is not renewed, it ends by itself."""
        assert self._connection is not None
        self._groups.lease_until = lease.until
        if self._lease_end is not None:
            self._lease_end.cancel()
            self._lease_end = None
        left = lease.until - lease_clock()
        if 0 < left < inf:
            self._lease_end = asyncio.get_running_loop().call_later(left + _LEASE_CHECK, self._lease_ended)
        await self._groups.follow_lease(self._connection, self._table.families.values())

    def _lease_ended(self) -> None:
        assert self._connection is not None
        _log.warning("the lease of site %s has ended; durable topics wait", self._assignment.site)
        leaving = self._groups.follow_lease(self._connection, self._table.families.values())
        self._tasks.spawn(leaving, name="leave the queue groups")

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
        return TopicWork(
            family.machine.epoch,
            sum(topic.processed for topic in family.topics),
            sum(self._process.busy[topic.number] for topic in family.topics),
            sum(self._queue.pending(family)),
            sum(topic.dead_letters for topic in family.topics),
            sum(topic.deferred for topic in family.topics),
            [sum(counts) for counts in zip(empty(), *(topic.latency for topic in family.topics), strict=True)],
        )
