"""What is under way of a concrete durable topic, and what was marked recently.

Nearly all publications have a source and a number, and are known by these: ids are taken apart once, when they come in,
and what is said of many is said of ranges. The others (devices that do not use the SDK) are known by their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.domain.number_ranges import NumberRanges
from nearcast.nats.deduplication import RecentIds
from nearcast.nats.stamp import publication_key

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["ProcessingRecord", "RecentMarks", "SourceRecord"]

_REMEMBERED = 16_384


class SourceRecord:
    """One source. in_flight: numbers under way here; processed: those of them that wait for their mark."""

    __slots__ = ("in_flight", "key", "name", "processed")

    def __init__(self, key: bytes) -> None:
        self.key, self.name = key, str(key, "utf-8", "replace")
        self.in_flight: set[int] = set()
        self.processed: list[int] = []


class ProcessingRecord:
    """Publications of a concrete durable topic that are under way here, and those marked recently.

    sources: by name, as ids have it; only those with something under way. in_flight: ids of the others, and of dead
    letters. retried: those that were dead letters. awaited_until: before that another member waits for marks, it seems.
    elsewhere: until when to leave publications to the other member that has them in flight, by id.
    """

    __slots__ = ("awaited_until", "elsewhere", "in_flight", "marked", "retried", "sources")

    def __init__(self) -> None:
        self.awaited_until = 0.0
        self.sources: dict[bytes, SourceRecord] = {}
        self.in_flight: set[bytes] = set()
        self.retried: set[bytes] = set()
        self.elsewhere: dict[bytes, float] = {}
        self.marked = RecentMarks()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not self.in_flight and not self.sources

    def __contains__(self, message_id: bytes) -> bool:
        """Whether a publication is under way."""
        if message_id in self.in_flight:
            return True
        key = publication_key(message_id)
        return key is not None and (source := self.sources.get(key[0])) is not None and key[1] in source.in_flight

    def add_source(self, name: bytes) -> SourceRecord:
        """A source that nothing was under way of."""
        source = self.sources[name] = SourceRecord(name)
        return source

    def add(self, message_id: bytes) -> None:
        """A publication is under way."""
        key = publication_key(message_id)
        if key is None:
            self.in_flight.add(message_id)
        else:
            (self.sources.get(key[0]) or self.add_source(key[0])).in_flight.add(key[1])

    def leave(self, message_id: bytes) -> None:
        """A publication is not under way any more."""
        self.in_flight.discard(message_id)
        self.retried.discard(message_id)
        key = publication_key(message_id)
        if key is not None and (source := self.sources.get(key[0])) is not None:
            self.leave_numbers(source, (key[1],))

    def leave_numbers(self, source: SourceRecord, numbers: Collection[int]) -> None:
        """Publications of a source are not under way any more."""
        source.in_flight.difference_update(numbers)
        if not source.in_flight and self.sources.get(source.key) is source:
            del self.sources[source.key]


class RecentMarks:
    """Publications that were marked: of those with a number, and of the others, the last 16,384 at least.

    link: the one to the broker that their marks were sent by.
    """

    __slots__ = ("_count", "_ids", "_older", "_younger", "link")

    def __init__(self, link: object = None) -> None:
        self.link = link
        self._ids = RecentIds(_REMEMBERED)
        self._younger: dict[bytes, NumberRanges] = {}
        self._older: dict[bytes, NumberRanges] = {}
        self._count = 0  # of the younger ones

    def add(self, ids: Collection[bytes]) -> None:
        """These without a number were marked."""
        self._ids.add(ids)

    def add_ranges(self, source: bytes, ranges: NumberRanges, count: int) -> None:
        """So many of a source were marked."""
        if self._count >= _REMEMBERED:
            self._older, self._younger, self._count = self._younger, {}, 0
        self._count += count
        known = self._younger.get(source)
        if known is None:
            known = self._younger[source] = NumberRanges()
        for first, last in ranges:
            known.add(first, last)

    def __contains__(self, message_id: bytes) -> bool:
        key = publication_key(message_id)
        if key is None:
            return message_id in self._ids
        source, number = key
        generations = (self._younger.get(source), self._older.get(source))
        return any(known is not None and number in known for known in generations)
