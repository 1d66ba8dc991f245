"""A worker's part when a topic moves: join with a copy of the spool, leave without losing what is under way.

Joining: ask the present worker for copies from now on and for what its spool holds, then enter the queue group.
Leaving: a broker far away may still send here for a moment after the queue group was left. So before leaving, the
topic is also subscribed to plainly; what comes on that way and was not taken from the queue group is sent on to a
worker that has the topic now. Most of it came there by itself, and ids tell. Where there is a third member it may have
gone there instead: then it is held for a moment, and processed only if no copy of it has come by then. A message
without an id is held as well, and taken for one that came if that one said the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from nearcast.domain.topic import TopicSpec, matches
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint, call
from nearcast.nats.stamp import header_block, stamp_of
from nearcast.nats.tasks import cancel_and_wait
from nearcast.processors import ProcessorSpec, find_processor
from nearcast.protocol.worker import HostTopic, LeaveTopic, MembersChanged, SpoolEntry, SpoolPage, SpoolPageRequest

if TYPE_CHECKING:
    from nearcast.site.worker import Topic, Worker

__all__ = ["Hosted", "Membership"]

_log = logging.getLogger(__name__)
_PAGE_BYTES = 256 << 10
_PAGE_MESSAGES = 1000
_ANSWER_LIMIT = 5.0
_LOOK_EVERY = 0.01


class Hosted:
    """A topic, or a family of topics, that this worker processes."""

    def __init__(
        self, spec: TopicSpec, handler: ProcessorSpec, epoch: int, hold: float = 0.5, *, moved_here: bool
    ) -> None:
        self.spec, self.handler, self.epoch, self.hold, self.moved_here = spec, handler, epoch, hold, moved_here
        self.copied = len(spec.managed_by) > 1 or moved_here
        self.topics: list[Topic] = []
        self.queue: Any = None
        self.copies: Any = None
        self.shared = len(spec.managed_by) > 1  # with members other than the one it came from
        self.towards: WorkerId | None = None  # where publications go that still come after it left
        self.left = False
        self.gone = asyncio.Event()


class Membership:
    """Which topics a worker processes, and the commands that change it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.hosted: dict[str, Hosted] = {}
        self._leaving: dict[str, Hosted] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def endpoints(self) -> list[Endpoint]:
        """The commands a worker takes."""
        site, name = self._worker.site, self._worker.name
        handlers: list[tuple[Any, Any]] = [
            (HostTopic, self._host_topic),
            (LeaveTopic, self.leave),
            (MembersChanged, self.members_changed),
            (SpoolPageRequest, self.page),
        ]
        return [
            Endpoint(kind.verb, subjects.worker_command(site, name, kind.verb), kind, handler, "msgpack")
            for kind, handler in handlers
        ]

    async def listen(self) -> None:
        """Take what other workers hand over."""
        worker = self._worker
        await worker.connection.subscribe_raw(subjects.handover(worker.site, worker.name, ">"), self._handed_over)

    async def stop(self) -> None:
        """Give up what is under way."""
        await cancel_and_wait(*self._tasks)

    def hosting(self, topic: str) -> Hosted:
        """What is known of the family a topic belongs to."""
        for hosted in (*self.hosted.values(), *self._leaving.values()):
            if matches(hosted.spec.name, topic):
                return hosted
        raise NearcastError(f"topic {topic} is not processed here")

    async def _host_topic(self, command: HostTopic) -> None:
        await self.host(command.spec, command.epoch, command.source, command.hold)

    async def host(self, spec: TopicSpec, epoch: int, source: WorkerId | None = None, hold: float = 0.5) -> None:
        """Join a topic's queue group, with a copy of another worker's spool if there is one."""
        worker = self._worker
        while spec.name in self._leaving:  # it comes back before it was gone
            await self._leaving[spec.name].gone.wait()
        known = self.hosted.get(spec.name)
        if known is not None:
            known.epoch = max(known.epoch, epoch)
            return
        handler = find_processor(worker.executor.processors, spec.name)
        hosted = self.hosted[spec.name] = Hosted(spec, handler, epoch, hold, moved_here=source is not None)
        try:
            if source:
                await self._copy_spool(hosted, source)
            elif hosted.copied:
                hosted.copies = await worker.connection.subscribe_raw(subjects.copies(spec.name), worker.copied)
            hosted.queue = await worker.connection.subscribe_raw(
                subjects.publications(spec.name), worker.published, subjects.PROCESSORS
            )
            await worker.connection.flush()
        except BaseException:
            del self.hosted[spec.name]
            if hosted.copies is not None:
                await worker.connection.unsubscribe_raw(hosted.copies)
            for topic in hosted.topics:
                worker.forget(topic)
            raise

    async def _copy_spool(self, hosted: Hosted, source: WorkerId) -> None:
        """Fill the spools: first what the source has, then the copies it sent meanwhile."""
        worker, name = self._worker, hosted.spec.name
        held: list[tuple[str, bytes, bytes]] = []

        def hold(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
            held.append((subject, stamp_of(headers), payload))

        hosted.copies = await worker.connection.subscribe_raw(subjects.copies(name), hold)
        await worker.connection.flush()
        after, more = ("", -1), True
        while more:
            page = await self._ask_for_page(source, SpoolPageRequest(name, after))
            for entry in page.entries:
                self._keep(subjects.copies(entry.topic), entry.id, entry.payload)
                after = (entry.topic, entry.number)
            more = page.more
        for subject, message_id, payload in held:
            self._keep(subject, message_id, payload)
        worker.connection.set_handler(hosted.copies, worker.copied)

    def _keep(self, subject: str, message_id: bytes, payload: bytes) -> None:
        topic = self._worker.meet(subject)
        if topic.recent is None or not topic.recent.seen(message_id):
            topic.spool.append(message_id, payload)

    async def _ask_for_page(self, source: WorkerId, question: SpoolPageRequest) -> SpoolPage:
        subject = subjects.worker_command(*source, question.verb)
        try:
            return await call(
                self._worker.connection, subject, question, SpoolPage, timeout=_ANSWER_LIMIT, encoding="msgpack"
            )
        except NearcastError as error:
            raise NearcastError(f"{source} sends no spool of topic {question.topic}: {error}") from error

    async def leave(self, command: LeaveTopic) -> None:
        """Leave the queue group now; finish what was taken, and send on what still comes, in the background."""
        connection = self._worker.connection
        hosted = self.hosted.get(command.topic)
        if hosted is None:
            return
        if command.epoch < hosted.epoch:
            raise NearcastError(f"topic {command.topic} is held with epoch {hosted.epoch}, newer than {command.epoch}")
        if hosted.queue is None:
            raise NearcastError(f"topic {command.topic} is still being copied here")
        del self.hosted[command.topic]
        self._leaving[command.topic] = hosted
        hosted.towards = command.towards
        shadow = None
        if command.towards:
            shadow = await self._step_aside(hosted)
        else:
            await connection.drain_subscription(hosted.queue)
        hosted.left = True
        self._spawn(self._finish(command.topic, hosted, shadow, command.settle))

    async def _step_aside(self, hosted: Hosted) -> Any:
        """Subscribe plainly, leave the queue group, and send on what only the plain subscription got."""
        worker, connection = self._worker, self._worker.connection
        taken: Counter[tuple[str, bytes]] = Counter()
        passed: list[tuple[str, bytes, bytes]] = []

        def from_queue(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
            taken[subjects.topic_of(subject), stamp_of(headers) or payload] += 1
            worker.published(subject, reply, payload, headers)

        def see_pass(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
            passed.append((subjects.topic_of(subject), stamp_of(headers), payload))

        def send_on(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
            self._send_on_once(hosted, subjects.topic_of(subject), stamp_of(headers), payload)

        connection.set_handler(hosted.queue, from_queue)
        shadow = await connection.subscribe_raw(subjects.publications(hosted.spec.name), see_pass)
        with contextlib.suppress(NatsError, TimeoutError):  # a broker that is away sends nothing that could be missed
            await connection.flush()
        await connection.drain_subscription(hosted.queue)
        # Nothing is awaited from here on: what the queue group gave has come, the rest is for the other worker.
        connection.set_handler(shadow, send_on)
        for topic, message_id, payload in passed:
            if taken[topic, message_id or payload] > 0:
                taken[topic, message_id or payload] -= 1
            else:
                self._send_on_once(hosted, topic, message_id, payload)
        return shadow

    def _send_on_once(self, hosted: Hosted, topic: str, message_id: bytes, payload: bytes) -> None:
        """What the worker before this one hands over of the same may stay here then: it saw what this one saw."""
        if not message_id:
            unnamed = self._worker.meet(subjects.publications(topic)).unnamed
            if unnamed is not None:
                unnamed.note(payload, time.monotonic())
        self._send_on(hosted, topic, message_id, payload)

    def _send_on(self, hosted: Hosted, topic: str, message_id: bytes, payload: bytes) -> None:
        assert hosted.towards is not None
        site, name = hosted.towards
        headers = header_block(message_id) if message_id else b""
        self._worker.send(subjects.handover(site, name, topic), headers, payload)

    async def _finish(self, name: str, hosted: Hosted, shadow: Any, settle: float) -> None:
        worker, connection = self._worker, self._worker.connection
        if shadow is not None:
            await asyncio.sleep(settle)
            await connection.drain_subscription(shadow)
            await asyncio.sleep(hosted.hold)  # for what was handed over to this one, and is to go on
        if hosted.copies is not None:  # before the last look: a copy that comes later would be put nowhere
            await connection.unsubscribe_raw(hosted.copies)
        numbers = {topic.number for topic in hosted.topics}
        # Looking now and then costs less than an event set for every message.
        while any(ticket.topic in numbers for ticket in worker.executor.outstanding) or any(  # noqa: ASYNC110
            entry[0].number in numbers for entry in worker.waiting
        ):
            await asyncio.sleep(_LOOK_EVERY)
        for topic in hosted.topics:
            worker.forget(topic)
        del self._leaving[name]
        hosted.gone.set()

    def _handed_over(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        name, message_id = subjects.handed_topic(subject), stamp_of(headers)
        try:
            hosted = self.hosting(name)
        except NearcastError as error:
            _log.error("a publication was handed over in vain: %s", error)
            return
        recent = self._worker.meet(subjects.publications(name)).recent
        if recent is not None and message_id in recent:
            return
        if hosted.shared or not message_id:
            asyncio.get_running_loop().call_later(hosted.hold, self._held_long_enough, name, message_id, payload)
        else:
            self._held_long_enough(name, message_id, payload)

    def _held_long_enough(self, name: str, message_id: bytes, payload: bytes) -> None:
        try:
            hosted = self.hosting(name)
        except NearcastError as error:
            _log.error("a publication was handed over in vain: %s", error)
            return
        topic = self._worker.meet(subjects.publications(name))
        if not message_id and topic.unnamed is not None and topic.unnamed.match(payload, time.monotonic()):
            return
        if not hosted.left:
            self._worker.handed_over(topic, message_id, payload)
        elif hosted.towards and (topic.recent is None or not topic.recent.seen(message_id)):
            self._send_on(hosted, name, message_id, payload)

    async def members_changed(self, command: MembersChanged) -> None:
        """Send copies only while somebody needs them."""
        hosted = self.hosted.get(command.topic)
        if hosted is None or command.epoch < hosted.epoch:
            return
        hosted.epoch = command.epoch
        hosted.shared = command.members > 1
        await self._share(hosted, command.members > 1)

    async def _share(self, hosted: Hosted, copied: bool) -> None:
        connection = self._worker.connection
        hosted.copied = copied
        for topic in hosted.topics:
            topic.copied = copied
        if copied and hosted.copies is None:
            hosted.copies = await connection.subscribe_raw(subjects.copies(hosted.spec.name), self._worker.copied)
        elif not copied and hosted.copies is not None:
            copies, hosted.copies = hosted.copies, None
            await connection.unsubscribe_raw(copies)

    async def page(self, question: SpoolPageRequest) -> SpoolPage:
        """Part of the spools of a topic. From now on copies are sent as well, so that nothing is missed in between."""
        hosted = self.hosted.get(question.topic)
        if hosted is None:
            raise NearcastError("it does not have the topic")
        hosted.shared = True
        if not hosted.copied or hosted.copies is None:
            await self._share(hosted, True)
        entries: list[SpoolEntry] = []
        size = 0
        for topic in sorted(hosted.topics, key=lambda topic: topic.name):
            if topic.name < question.after[0]:
                continue
            spool = topic.spool
            first = max(spool.first, spool.count - hosted.handler.spool)
            if topic.name == question.after[0]:
                first = max(first, question.after[1] + 1)
            for number in range(first, spool.count):
                message_id, payload = spool.read(number)
                entries.append(SpoolEntry(topic.name, number, message_id, payload))
                size += len(payload) + len(message_id)
                if size > _PAGE_BYTES or len(entries) >= _PAGE_MESSAGES:
                    return SpoolPage(entries, more=True)
        entries += [
            SpoolEntry(topic.name, topic.spool.count, message_id, payload)
            for topic, message_id, payload, _ in self._worker.waiting
            if topic in hosted.topics
        ][-hosted.handler.spool :]
        return SpoolPage(entries)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
