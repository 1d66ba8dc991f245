"""What a worker has processed of durable topics, and says so: marks, in batches, for the stores of each topic.

While another member waits for them, to keep a source's order, they are published as fast as the broker confirms.

A publication is marked once the broker has confirmed that it got its notifications, on the link they were sent by: a
broker confirms nothing of a link that was lost. What could not be confirmed is not marked, and is processed again when
a store redelivers it. So is what was marked by a link that was lost, if no store has the mark: a broker that was killed
may have had both the mark and the notifications in its buffers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.domain.number_ranges import NumberRanges
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.digest import id_hash
from nearcast.nats.stamp import ANONYMOUS, header_block, new_incarnation, publication_key
from nearcast.protocol.marks import Marks, TopicMarks
from nearcast.site.worker.processing_record import RecentMarks

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.connection import Connection
    from nearcast.site.worker.processing_record import SourceRecord
    from nearcast.site.worker.topics import HostedTopic, TopicFamily

__all__ = ["MarkLog"]

_log = logging.getLogger(__name__)
_PERIOD = 0.1
_HURRY_PERIOD = 1.0  # how long marks are published at once after a sign that somebody waits
_CONFIRM_LIMIT = 10
_LARGEST_MARK = 2000  # ranges and hashes; each may take a few hundred bytes, with the name of its source


class _Batch:
    """Publications of one topic that were processed. sources: of those with a number. ids: of the others.

    hashes: of those of the others that came without an id, by the id they were given.
    """

    __slots__ = ("hashes", "ids", "sources")

    def __init__(self) -> None:
        self.sources: list[SourceRecord] = []
        self.ids: list[bytes] = []
        self.hashes: dict[bytes, int] = {}


class _Processed:
    """A batch that nothing is added to any more."""

    __slots__ = ("ids", "numbers", "others", "topic")

    def __init__(self, topic: HostedTopic, batch: _Batch) -> None:
        self.topic, self.ids = topic, batch.ids
        self.others = [batch.hashes.get(one) or id_hash(one, b"") for one in batch.ids]
        self.numbers: list[tuple[SourceRecord, list[int], NumberRanges]] = []
        for source in batch.sources:
            self.numbers.append((source, source.processed, NumberRanges.of(source.processed)))
            source.processed = []

    def __len__(self) -> int:
        return len(self.ids) + sum(len(numbers) for _, numbers, _ in self.numbers)

    def leave(self, *, marked: bool, link: object = None) -> None:
        """None of it is under way any more. link: the one that its mark was sent by."""
        record = self.topic.record
        record.in_flight.difference_update(self.ids)
        if marked:
            if record.marked.link != link:
                record.marked = RecentMarks(link)
            record.marked.add(self.ids)
        for source, numbers, ranges in self.numbers:
            record.leave_numbers(source, numbers)
            if marked:
                record.marked.add_ranges(source.key, ranges, len(numbers))

    def ranges(self) -> dict[str, list[int]]:
        """First and last of the ranges of each source. Names that are no UTF-8 may be the same in a mark."""
        found: dict[str, NumberRanges] = {}
        for source, _, ranges in self.numbers:
            if source.name in found:
                ranges = NumberRanges([*found[source.name].flat(), *ranges.flat()])
            found[source.name] = ranges
        return {name: ranges.flat() for name, ranges in found.items()}


class LeaseEndedError(NearcastError):
    """The site's lease ended before what was processed could be marked: its topics may have another owner."""


class LinkLostError(NearcastError):
    """The link that notifications were sent by was lost before the broker confirmed them."""


class MarkLog:
    """Collects what was processed, and publishes it every 100 ms.

    may_mark: whether the site has a lease. link: the one to the broker that notifications are sent by now, or None.
    """

    def __init__(
        self, site: str, worker: str, may_mark: Callable[[], bool], link: Callable[[], object] = lambda: None
    ) -> None:
        self._may_mark, self._link = may_mark, link
        self._sent_by: object = None  # when the first of those that were processed was
        self._site, self._worker = site, f"{site}/{worker}"
        self._prefix = f"mark~{new_incarnation()}:{site}"
        self._number = 0
        self._processed: dict[HostedTopic, _Batch] = {}
        self._publishing = asyncio.Lock()
        self._awaited = asyncio.Event()

    def note_number(self, topic: HostedTopic, source: SourceRecord, number: int) -> None:
        """A publication was processed, its notifications were sent; or it became a dead letter."""
        if not source.processed:
            self._batch(topic).sources.append(source)
        source.processed.append(number)
        if topic.record.awaited_until:
            self._wake(topic)

    def note(self, topic: HostedTopic, message_id: bytes, payload: bytes) -> None:
        """The same, of a publication that may have no number."""
        key = publication_key(message_id)
        if key is not None:
            self.note_number(topic, topic.record.sources.get(key[0]) or topic.record.add_source(key[0]), key[1])
            return
        batch = self._batch(topic)
        batch.ids.append(message_id)
        if message_id.startswith(ANONYMOUS):
            batch.hashes[message_id] = id_hash(b"", payload)
        if topic.record.awaited_until:
            self._wake(topic)

    def _batch(self, topic: HostedTopic) -> _Batch:
        batch = self._processed.get(topic)
        if batch is None:
            if not self._processed:
                self._sent_by = self._link()
            batch = self._processed[topic] = _Batch()
        return batch

    def _wake(self, topic: HostedTopic) -> None:
        if time.monotonic() < topic.record.awaited_until:
            self._awaited.set()
        else:
            topic.record.awaited_until = 0.0

    def was_sent(self, topic: HostedTopic, message_id: bytes) -> bool:
        """Whether a publication was marked by the present link: only its mark was lost, not its notifications."""
        marked = topic.record.marked
        return marked.link == self._link() and message_id in marked

    def hurry(self, topic: HostedTopic, now: float) -> None:
        """Another member waits for a mark of this topic."""
        topic.record.awaited_until = now + _HURRY_PERIOD
        self._awaited.set()

    async def run(self, connection: Connection) -> None:
        """Publish marks until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD):
                    await self._awaited.wait()
            self._awaited.clear()
            await self.publish(connection)

    async def publish(self, connection: Connection) -> None:
        """Mark what was processed so far. What cannot be marked is not under way any more: stores give it again."""
        async with self._publishing:
            if not self._processed:
                return
            processed = [_Processed(topic, batch) for topic, batch in self._processed.items()]
            self._processed, sent_by = {}, self._sent_by
            try:
                await connection.flush(timeout=_CONFIRM_LIMIT)  # the notifications are at the broker
                if self._link() != sent_by:
                    raise LinkLostError("the link to the broker was lost before it had confirmed their notifications")
                if not self._may_mark():
                    raise LeaseEndedError("the site has no lease")
                self._send(connection, processed)
            except Exception as error:
                number, known = sum(map(len, processed)), isinstance(error, NearcastError | NatsError | OSError)
                _log.warning(
                    "%d processed publications are not marked: %s", number, error or "no answer", exc_info=not known
                )
                for one in processed:
                    one.leave(marked=False)
                return
        for one in processed:
            one.leave(marked=True, link=sent_by)

    def _send(self, connection: Connection, processed: list[_Processed]) -> None:
        """One mark for each family; more when there is too much for one."""
        families: dict[TopicFamily, list[_Processed]] = {}
        for one in processed:
            families.setdefault(one.topic.family, []).append(one)
        for family, batches in families.items():
            said: dict[str, TopicMarks] = {}
            room = _LARGEST_MARK
            for one in batches:
                for source, flat in (*one.ranges().items(), (None, one.others)):
                    start, width = 0, 1 if source is None else 2
                    while start < len(flat):
                        part = flat[start : start + width * room]
                        marks = said.setdefault(one.topic.name, TopicMarks({}, []))
                        if source is None:
                            marks.others.extend(part)
                        else:
                            marks.sources[source] = part
                        start, room = start + len(part), room - len(part) // width
                        if not room:
                            self._send_mark(connection, family, said)
                            said, room = {}, _LARGEST_MARK
            if said:
                self._send_mark(connection, family, said)

    def _send_mark(self, connection: Connection, family: TopicFamily, said: dict[str, TopicMarks]) -> None:
        self._number += 1
        message_id = f"{self._prefix}:{time.time_ns() // 1000}:{self._number}".encode()
        payload = msgspec.msgpack.encode(Marks(family.machine.epoch, self._worker, said))
        connection.send(subjects.marks_of_family(family.spec.name), header_block(message_id), payload)
