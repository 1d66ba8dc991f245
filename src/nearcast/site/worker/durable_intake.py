"""Publications of durable topics on their way into the processing queue: in the order of each source, each once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nearcast.domain.number_ranges import NumberRanges
from nearcast.errors import NearcastError
from nearcast.nats.boundary import MalformedError, decoder, drop
from nearcast.nats.stamp import given_up, publication_key, source_and_number
from nearcast.nats.tasks import repeat
from nearcast.protocol.marks import Marks, Redelivered, SourceProgress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nearcast.protocol.worker import SourcePosition
    from nearcast.site.worker.mark_log import MarkLog
    from nearcast.site.worker.processing_queue import ProcessingQueue
    from nearcast.site.worker.topics import HostedTopic, TopicFamily, TopicTable, Waiting

__all__ = ["DurableIntake"]

_PERIOD = 0.1
_LATE_AFTER = 1.0  # what waited longer for older ones may come behind newer ones that another member processed
_ELSEWHERE = 6.0  # s in which another member processes what it has in flight, or has died
_ELSEWHERE_IDS = 10_000


class DurableIntake:
    """Puts messages into the queue; those of topics that are not durable as they come."""

    def __init__(self, queue: ProcessingQueue, marks: MarkLog) -> None:
        self._queue, self._marks = queue, marks
        self._decode = decoder(Marks, "msgpack")

    def take(
        self,
        topic: HostedTopic,
        message_id: bytes,
        payload: bytes,
        now: float,
        attempt: int = 0,
    ) -> None:
        """Process a publication when it is its turn. attempt: of a late one."""
        if not topic.durable or (key := publication_key(message_id)) is None:
            self._queue.put(topic, message_id, payload, now, attempt)
            return
        source = topic.record.sources.get(key[0]) or topic.record.add_source(key[0])
        number = key[1]
        source.in_flight.add(number)  # it may be held before it is in the queue
        order, name = topic.family.order, source.name
        if order.is_next(topic.name, name, number):  # nearly always
            self._queue.put(topic, message_id, payload, now, attempt, source, number)
            return
        if order.has_passed(topic.name, name, number):
            attempt = attempt or 1
        item = (topic, message_id, payload, now, attempt, source, number)
        self._put(order.arrive(topic.name, name, number, item, now), now)
        self._skip_given_up(topic, name, message_id, now)

    def redelivered(self, topic: HostedTopic, message_id: bytes, payload: bytes, attempt: int, now: float) -> bytes:
        """A store gives a publication that nobody has marked; what to answer."""
        record = topic.record
        if message_id in record:
            return Redelivered.KNOWN
        if self._marks.was_sent(topic, message_id):  # its mark was lost
            record.add(message_id)
            self._marks.note(topic, message_id, payload)
            return Redelivered.KNOWN
        if now < record.elsewhere.get(message_id, 0.0):  # it may be held there, for the sake of order
            return Redelivered.KNOWN
        if not self._queue.has_room(len(message_id) + len(payload)):  # no attempt: it is asked again later
            return Redelivered.KNOWN
        topic.machine.note_redelivery(topic.name, message_id)
        self.take(topic, message_id, payload, now, attempt)
        return Redelivered.TAKEN

    def retried(self, topic: HostedTopic, message_id: bytes, payload: bytes, attempt: int, now: float) -> bytes:
        """A dead letter is tried again, whatever came of its source since; what to answer."""
        record = topic.record
        if message_id in record and message_id not in record.retried:  # it failed just now
            self._marks.hurry(topic, now)
            return Redelivered.LATER
        if message_id in record or not self._queue.has_room(len(message_id) + len(payload)):
            return Redelivered.KNOWN
        record.retried.add(message_id)
        self._queue.put(topic, message_id, payload, now, attempt)
        return Redelivered.TAKEN

    def copied(self, topic: HostedTopic, message_id: bytes, now: float) -> None:
        """Another member has a publication in flight."""
        if not topic.durable or (key := source_and_number(message_id)) is None:
            return
        elsewhere = topic.record.elsewhere
        elsewhere[message_id] = now + _ELSEWHERE
        if len(elsewhere) > _ELSEWHERE_IDS:
            del elsewhere[next(iter(elsewhere))]
        if topic.family.order.taken_elsewhere(topic.name, *key):
            self._marks.hurry(topic, now)
        self._skip_given_up(topic, key[0], message_id, now)

    def _skip_given_up(self, topic: HostedTopic, source: str, message_id: bytes, now: float) -> None:
        """Do not wait for publications that their client will not send again."""
        numbers = given_up(message_id)
        if numbers is not None:
            self._put(topic.family.order.given_up(topic.name, source, *numbers), now)

    def adopt(self, family: TopicFamily, positions: Iterable[SourcePosition]) -> None:
        """How far the member is that this one takes the topic over from."""
        said = ((one.topic, one.source, one.next, _numbers(one.in_flight)) for one in positions)
        self._put(family.order.adopt(said), time.monotonic())

    def learn(self, family: TopicFamily, topic: str, source: str, progress: SourceProgress) -> None:
        """How far a source was processed, as the stores know."""
        marked, unmarked = NumberRanges(progress.marked), NumberRanges(progress.unmarked)
        self._put(family.order.learn(topic, source, marked, unmarked), time.monotonic())

    def marked_elsewhere(self, table: TopicTable, payload: bytes) -> None:
        """Another member has processed publications."""
        try:
            marks = self._decode(payload)
        except MalformedError as error:
            drop("mark", "another member", error)
            return
        now = time.monotonic()
        for topic, said in marks.topics.items():
            try:
                order = table.family_of(topic).order
            except NearcastError:  # it has left meanwhile
                continue
            for source, flat in said.sources.items():
                for first, last in zip(flat[::2], flat[1::2], strict=True):
                    released = order.done_elsewhere(topic, source, first, last)
                    if released:  # it waited for that member, which likely waits for it in turn
                        self._marks.hurry(next(iter(released))[0], now)
                    self._put(released, now)

    async def run(self, table: TopicTable) -> None:
        """Release what was held long enough, until cancelled."""

        def expire() -> None:
            now = time.monotonic()
            for family in list(table.families.values()):
                if family.order.held:
                    self._put(family.order.expire(now), now)

        await repeat(expire, _PERIOD, "held publications were not released")

    def _put(self, items: Iterable[Waiting], now: float) -> None:
        for topic, message_id, payload, arrived, attempt, source, number in items:
            waited = arrived is not None and now - arrived > _LATE_AFTER
            self._queue.put(topic, message_id, payload, arrived, attempt or int(waited), source, number)


def _numbers(flat: list[int]) -> Iterator[int]:
    for first, last in zip(flat[::2], flat[1::2], strict=True):
        yield from range(first, last + 1)
