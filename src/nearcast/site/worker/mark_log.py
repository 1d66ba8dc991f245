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
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Callable, Iterable

    from nearcast.nats.connection import Connection
    from nearcast.site.worker.topics import HostedTopic, TopicFamily

__all__ = ["MarkLog", "topic_marks"]

_log = logging.getLogger(__name__)
_PERIOD = 0.1
_HURRY_PERIOD = 1.0  # how long marks are published at once after a sign that somebody waits
_CONFIRM_LIMIT = 10
_LARGEST_MARK = 2000  # publications; what a mark says of each may take up to a few hundred bytes

Processed = tuple["HostedTopic", bytes, int]
"""A publication's topic, its id, and the hash by which it is known when it came without an id."""


class LeaseEndedError(NearcastError):
    """The site's lease ended before what was processed could be marked: its topics may have another owner."""


class MarkLog:
    """Collects what was processed, and publishes it every 100 ms. may_mark: whether the site has a lease."""

    def __init__(self, site: str, worker: str, may_mark: Callable[[], bool]) -> None:
        self._may_mark = may_mark
        self._site, self._worker = site, f"{site}/{worker}"
        self._prefix = f"mark~{new_incarnation()}:{site}"
        self._number = 0
        self._processed: list[Processed] = []
        self._publishing = asyncio.Lock()
        self._awaited = asyncio.Event()

    def note(self, topic: HostedTopic, message_id: bytes, payload: bytes) -> None:
        """A publication was processed, its notifications were sent; or it became a dead letter."""
        other = id_hash(b"", payload) if message_id.startswith(ANONYMOUS) else 0
        self._processed.append((topic, message_id, other))
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
                await self.publish(connection)

    async def publish(self, connection: Connection) -> None:
        """Mark what was processed so far."""
        async with self._publishing:
            processed, self._processed = self._processed, []
            try:
                await connection.flush(timeout=_CONFIRM_LIMIT)  # the notifications are at the broker
                if not self._may_mark():
                    raise LeaseEndedError("the site has no lease")
                for mark in _batches(processed):
                    self._send(connection, mark)
            except (NatsError, TimeoutError, ConnectionLostError, LeaseEndedError, OSError) as error:
                _log.warning("%d processed publications are not marked: %s", len(processed), error or "no answer")
                for topic, message_id, _ in processed:
                    topic.record.in_flight.discard(message_id)
                return
        for topic, message_id, _ in processed:
            topic.record.marked.seen(message_id)
            topic.record.in_flight.discard(message_id)

    def _send(self, connection: Connection, processed: list[Processed]) -> None:
        families: dict[TopicFamily, dict[HostedTopic, list[Processed]]] = {}
        for one in processed:
            families.setdefault(one[0].family, {}).setdefault(one[0], []).append(one)
        for family, topics in families.items():
            self._number += 1
            message_id = f"{self._prefix}:{time.time_ns() // 1000}:{self._number}".encode()
            said = {topic.name: topic_marks(entry[1:] for entry in entries) for topic, entries in topics.items()}
            payload = msgspec.msgpack.encode(Marks(family.machine.epoch, self._worker, said))
            connection.send(subjects.marks_of_family(family.spec.name), header_block(message_id), payload)


def topic_marks(processed: Iterable[tuple[bytes, int]]) -> TopicMarks:
    """The mark of publications of one topic: (id, hash); a hash of 0 for those that came with an id."""
    numbers: dict[str, list[int]] = {}
    others: list[int] = []
    for message_id, other in processed:
        key = None if other else source_and_number(message_id)
        if key is None:
            others.append(other or id_hash(message_id, b""))
            continue
        source, number = key
        if source in numbers:
            numbers[source].append(number)
        else:
            numbers[source] = [number]
    return TopicMarks({source: NumberRanges.of(found).flat() for source, found in numbers.items()}, others)


def _batches(processed: list[Any]) -> Iterable[list[Any]]:
    for start in range(0, len(processed), _LARGEST_MARK):
        yield processed[start : start + _LARGEST_MARK]
