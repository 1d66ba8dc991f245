"""What a worker has processed of durable topics, and says so: marks, in batches, for the stores of each topic.

While another member waits for them, to keep a source's order, they are published as fast as the broker confirms.

A publication is marked once the broker has confirmed that it got its notifications. What could not be confirmed is not
marked, and is processed again when a store redelivers it.
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
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.digest import id_hash
from nearcast.nats.stamp import ANONYMOUS, header_block, new_incarnation, source_and_number
from nearcast.protocol.marks import Marks, TopicMarks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nearcast.nats.connection import Connection
    from nearcast.site.worker.topics import HostedTopic, TopicFamily

__all__ = ["MarkLog", "topic_marks"]

_log = logging.getLogger(__name__)
_PERIOD = 0.1
_HURRY_PERIOD = 1.0  # how long marks are published at once after a sign that somebody waits
_CONFIRM_LIMIT = 10
_LARGEST_MARK = 2000  # publications; what a mark says of each may take up to a few hundred bytes


class _Batch:
    """Publications of one topic. hashes: of those of them that came without an id, by the id they were given."""

    __slots__ = ("hashes", "ids")

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.hashes: dict[bytes, int] = {}


class LeaseEndedError(NearcastError):
    """The site's lease ended before what was processed could be marked: its topics may have another owner."""


class MarkLog:
    """Collects what was processed, and publishes it every 100 ms. may_mark: whether the site has a lease."""

    def __init__(self, site: str, worker: str, may_mark: Callable[[], bool]) -> None:
        self._may_mark = may_mark
        self._site, self._worker = site, f"{site}/{worker}"
        self._prefix = f"mark~{new_incarnation()}:{site}"
        self._number = 0
        self._processed: dict[HostedTopic, _Batch] = {}
        self._publishing = asyncio.Lock()
        self._awaited = asyncio.Event()

    def note(self, topic: HostedTopic, message_id: bytes, payload: bytes) -> None:
        """A publication was processed, its notifications were sent; or it became a dead letter."""
        batch = self._processed.get(topic)
        if batch is None:
            batch = self._processed[topic] = _Batch()
        batch.ids.append(message_id)
        if message_id.startswith(ANONYMOUS):
            batch.hashes[message_id] = id_hash(b"", payload)
        if topic.record.awaited_until:
            if time.monotonic() < topic.record.awaited_until:
                self._awaited.set()
            else:
                topic.record.awaited_until = 0.0

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
            if self._processed:
                try:
                    await self.publish(connection)
                except Exception:  # the stores give again what has no mark
                    _log.exception("processed publications are not marked")

    async def publish(self, connection: Connection) -> None:
        """Mark what was processed so far."""
        async with self._publishing:
            processed, self._processed = self._processed, {}
            try:
                await connection.flush(timeout=_CONFIRM_LIMIT)  # the notifications are at the broker
                if not self._may_mark():
                    raise LeaseEndedError("the site has no lease")
                self._send(connection, processed)
            except (NatsError, TimeoutError, ConnectionLostError, LeaseEndedError, OSError) as error:
                number = sum(len(batch.ids) for batch in processed.values())
                _log.warning("%d processed publications are not marked: %s", number, error or "no answer")
                for topic, batch in processed.items():
                    topic.record.in_flight.difference_update(batch.ids)
                return
        for topic, batch in processed.items():
            topic.record.marked.add(batch.ids)
            topic.record.in_flight.difference_update(batch.ids)

    def _send(self, connection: Connection, processed: dict[HostedTopic, _Batch]) -> None:
        """One mark for each family; more when there is too much for one."""
        families: dict[TopicFamily, list[tuple[HostedTopic, _Batch]]] = {}
        for topic, batch in processed.items():
            families.setdefault(topic.family, []).append((topic, batch))
        for family, batches in families.items():
            said: dict[str, TopicMarks] = {}
            room = _LARGEST_MARK
            for topic, batch in batches:
                start = 0
                while start < len(batch.ids):
                    part = batch.ids[start : start + room]
                    said[topic.name] = topic_marks(part, batch.hashes)
                    start, room = start + len(part), room - len(part)
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


def topic_marks(ids: Iterable[bytes], hashes: Mapping[bytes, int]) -> TopicMarks:
    """The mark of publications of one topic. hashes: of those that came without an id."""
    numbers: dict[str, list[int]] = {}
    others: list[int] = []
    for message_id in ids:
        key = None if message_id in hashes else source_and_number(message_id)
        if key is None:
            others.append(hashes.get(message_id) or id_hash(message_id, b""))
            continue
        source, number = key
        if source in numbers:
            numbers[source].append(number)
        else:
            numbers[source] = [number]
    return TopicMarks({source: NumberRanges.of(found).flat() for source, found in numbers.items()}, others)
