"""Does what the handover machines of a worker's topics decide: subscriptions, spool pages, forwarding, answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import call
from nearcast.nats.stamp import header_block, stamp_of
from nearcast.nats.tasks import TaskSet
from nearcast.protocol.worker import HostTopic, LeaveTopic, MembersChanged, SpoolPage, SpoolPageRequest
from nearcast.site.worker import handover_events as ho
from nearcast.site.worker.spool_pages import read_page
from nearcast.site.worker.topics import TopicFamily, TopicTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.domain.worker_id import WorkerId
    from nearcast.nats.connection import Connection, Handler
    from nearcast.protocol.worker import WorkerStats
    from nearcast.site.worker.durable_intake import DurableIntake
    from nearcast.site.worker.processing_queue import ProcessingQueue
    from nearcast.site.worker.queue_group import QueueGroups

__all__ = ["HandoverExecutor"]

_log = logging.getLogger(__name__)
_PAGE_TIMEOUT = 5.0
_IDLE_POLL = 0.01


class HandoverExecutor:
    """Topics come to a worker and leave it.

    process: called with a publication that was handed over and is to be processed here.
    copied:  called with each message that another member processes.
    """

    def __init__(
        self,
        connection: Connection,
        table: TopicTable,
        queue: ProcessingQueue,
        groups: QueueGroups,
        intake: DurableIntake,
        send: Callable[[str, bytes, bytes], None],
        stats: WorkerStats,
        *,
        process: Callable[[ho.HandoverMessage], None],
        copied: Handler,
    ) -> None:
        self._connection, self._table, self._queue = connection, table, queue
        self._groups, self._intake, self._send, self._stats = groups, intake, send, stats
        self._process, self._copied = process, copied
        self._commands: dict[Any, list[asyncio.Future[None]]] = {}
        self._tasks = TaskSet()

    async def stop(self) -> None:
        """End what is under way."""
        await self._tasks.cancel()

    # Commands

    async def handle(self, command: HostTopic | LeaveTopic | MembersChanged | SpoolPageRequest) -> None:
        """Carry out a command of the agent; returns when it is done."""
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

    async def answer_page(self, request: SpoolPageRequest) -> SpoolPage:
        """A worker that takes a topic over asks for part of its spool."""
        await self.handle(request)
        family = self._table.families.get(request.topic)
        if family is None:
            raise NearcastError("it does not have the topic")
        return read_page(family, request.after, [entry[:3] for entry in self._queue.waiting])

    def handed_over(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        """A worker that left a topic forwarded a publication."""
        publication = ho.HandoverMessage(subjects.handed_topic(subject), stamp_of(headers), payload)
        try:
            family = self._table.family_of(publication.topic)
        except NearcastError:
            self._discard(publication)
        else:
            self._handle(family, ho.HandedOver(publication))

    def _new_family(self, command: HostTopic) -> TopicFamily:
        return self._table.add_family(command.spec, moved_here=command.source is not None)

    def _answer(self, command: Any, error: NearcastError | None = None) -> None:
        for answered in self._commands.pop(command, ()):
            if answered.done():
                continue
            if error is None:
                answered.set_result(None)
            else:
                answered.set_exception(error)

    # Instructions

    def _handle(self, family: TopicFamily, event: ho.Event) -> None:
        for instruction in family.machine.handle(event, time.monotonic()):
            match instruction:
                case ho.Process(publication):
                    self._process(publication)
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
                self._handle(family, await self._fetch_page(family, source, request))
            case ho.AwaitIdle():
                # Polling costs less than an event set for every message.
                while any(self._queue.pending(family)) or family.order.held:  # noqa: ASYNC110
                    await asyncio.sleep(_IDLE_POLL)
                if family.marks is not None:
                    await self._connection.drain_subscription(family.marks)
                    family.marks = None
                self._handle(family, ho.Idle())
            case ho.Done(command):
                async with family.io_lock:
                    self._answer(command)

    async def _subscribe(self, family: TopicFamily, role: ho.Role) -> None:
        connection, name = self._connection, family.spec.name
        async with family.io_lock:
            if family.spec.durable and family.marks is None:
                # As long as it stays: what it holds may wait for one that leaves, or that it left the topic to.
                marks = subjects.marks_of_family(name)
                family.marks = await connection.subscribe_raw(marks, self._marked_elsewhere)
            if role == "queue":
                await self._groups.enter(family)
            elif role == "copies":
                family.subscriptions[role] = await connection.subscribe_raw(subjects.copies(name), self._copied)
            else:
                family.subscriptions[role] = await connection.subscribe_raw(
                    subjects.publications(name), self._plain_received
                )
            with contextlib.suppress(NatsError, TimeoutError):  # a broker that is away hears of it when it is back
                await connection.flush()
            self._handle(family, ho.Subscribed(role))

    async def _drain(self, family: TopicFamily, role: ho.Role) -> None:
        async with family.io_lock:
            if role == "queue":
                await self._groups.leave(family)
            else:
                await self._connection.drain_subscription(family.subscriptions.pop(role))
            self._handle(family, ho.Drained(role))

    async def _fetch_page(
        self, family: TopicFamily, source: WorkerId, request: SpoolPageRequest
    ) -> ho.PageReceived | ho.CopyFailed:
        subject = subjects.worker_command(*source, request.verb)
        try:
            page = await call(self._connection, subject, request, SpoolPage, timeout=_PAGE_TIMEOUT, encoding="msgpack")
        except NearcastError as error:
            return ho.CopyFailed(f"{source} sends no spool of topic {request.topic}: {error}")
        if request == SpoolPageRequest(request.topic):
            self._intake.adopt(family, page.positions)
        return ho.PageReceived(page)

    # What comes while a topic moves

    def _plain_received(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        publication = ho.HandoverMessage(subjects.topic_of(subject), stamp_of(headers), payload)
        self._handle(self._table.family_of(publication.topic), ho.PlainReceived(publication))

    def _marked_elsewhere(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        self._intake.marked_elsewhere(self._table, payload)

    def _discard(self, publication: ho.HandoverMessage) -> None:
        self._stats.dropped += 1
        _log.error("dropped a handed-over message: topic %s is not hosted here", publication.topic)
