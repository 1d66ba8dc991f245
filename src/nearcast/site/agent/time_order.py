"""Reads a stream in the order of (time, id), the same at every store, by the runs of its index.

Runs are read in the order of their first time. What is before the first time of all runs that are left is in order.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from nearcast.errors import InputError
from nearcast.nats.streams import StreamError
from nearcast.site.agent.store_index import BUCKET_US, bucket_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from nearcast.nats.streams import StoredEntry, StreamReader
    from nearcast.protocol.services import Position
    from nearcast.site.agent.store_index import Run, StreamIndex

__all__ = ["BEGINNING", "MOST_HELD", "TimeOrder", "following", "position_of"]

BEGINNING: Position = (0, b"")
MOST_HELD = 128 << 20
"""Bytes of messages that one request may hold in memory to put them in order."""

_ENTRY_BYTES = 300  # of a message, besides its payload
_END_BUCKET = 1 << 53
_RUNS = 256  # looked up at a time
_FIRST_SPAN, _LONGEST_SPAN = 1_000, 64_000  # sequences that are read at a time; more when few of them match


def position_of(entry: StoredEntry) -> Position:
    """Where a message is in the order. Those without an id are told apart by their sequence."""
    return entry.time_us, entry.id or b"\0%020d" % entry.sequence


def following(position: Position) -> Position:
    """The first position behind this one."""
    return position[0], position[1] + b"\0"


class TimeOrder:
    """The messages of a subject in one stream, as it is now: what comes while it is read would leave gaps.

    stored_after: only those with a higher sequence. end: the last sequence that is looked at. reached_us: all messages
    before that time (read backwards: after it) were given. A list may be empty: each is one read of the store.
    """

    def __init__(self, reader: StreamReader, index: StreamIndex, subject: str, stored_after: int = 0) -> None:
        self._reader, self._index, self._subject, self._stored_after = reader, index, subject, stored_after
        self.end = index.position
        self._span = _FIRST_SPAN
        self._held = 0  # bytes that are read and not in order yet
        self.reached_us = 0

    async def forwards(self, start: Position, until_us: int) -> AsyncGenerator[list[StoredEntry], None]:
        """From a position on, to before a time; in lists, in order."""
        bucket, end = bucket_of(start[0]), min(bucket_of(until_us - 1) + 1, _END_BUCKET)
        while bucket < end:
            runs = self._runs(bucket, end)
            if not runs:
                return
            bucket = runs[-1].bucket + 1
            left = self._wanted(run for run in runs if run.high_us >= start[0] and run.low_us < until_us)
            left.sort(key=lambda run: run.low_us, reverse=True)
            waiting: list[StoredEntry] = []
            while left:
                waiting += await self._read(left)
                waiting.sort(key=position_of)
                limit = self.reached_us = left[-1].low_us if left else bucket * BUCKET_US
                ready = [entry for entry in waiting if entry.time_us < limit]
                waiting = waiting[len(ready) :]
                self._held -= sum(map(_size, ready))
                yield [one for one in _distinct(ready) if position_of(one) >= start and one.time_us < until_us]

    async def backwards(self, before: Position) -> AsyncGenerator[list[StoredEntry], None]:
        """From before a position on; in lists, the last one first."""
        bucket = bucket_of(before[0]) + 1
        while True:
            runs = self._runs(0, bucket, backwards=True)
            if not runs:
                return
            bucket = runs[-1].bucket
            left = sorted(self._wanted(runs), key=lambda run: run.high_us)
            waiting: list[StoredEntry] = []
            while left:
                waiting += await self._read(left)
                waiting.sort(key=position_of, reverse=True)
                limit = self.reached_us = left[-1].high_us if left else bucket * BUCKET_US - 1
                ready = [entry for entry in waiting if entry.time_us > limit]
                waiting = waiting[len(ready) :]
                self._held -= sum(map(_size, ready))
                yield [one for one in _distinct(ready) if position_of(one) < before]

    def _runs(self, low: int, high: int, *, backwards: bool = False) -> list[Run]:
        if self._index.replaced:
            raise StreamError(f"stream {self._index.name} was indexed again meanwhile; ask again")
        return self._index.runs(low, high, _RUNS, backwards=backwards)

    def _wanted(self, runs: Iterable[Run]) -> list[Run]:
        return [run for run in runs if run.last > self._stored_after and run.first <= self.end]

    async def _read(self, left: list[Run]) -> list[StoredEntry]:
        """The messages of the last runs of a list, which are taken from it, as many as are near each other."""
        first_run = left.pop()
        first, last, buckets = first_run.first, first_run.last, defaultdict(list, {first_run.bucket: [first_run]})
        while left:
            run = left[-1]
            if max(last, run.last) - min(first, run.first) >= self._span:
                break
            left.pop()
            first, last = min(first, run.first), max(last, run.last)
            buckets[run.bucket].append(run)
        start, end = max(first, self._stored_after + 1), min(last, self.end) + 1
        found: list[StoredEntry] = []
        async with contextlib.aclosing(self._reader.pages(self._index.name, self._subject, start, end)) as pages:
            async for page in pages:
                mine = [
                    one for one in page if any(one.sequence in run for run in buckets.get(bucket_of(one.time_us), ()))
                ]
                self._hold(mine)
                found += mine
        few = len(found) < _FIRST_SPAN // 4
        self._span = min(2 * self._span, _LONGEST_SPAN) if few else max(self._span // 2, _FIRST_SPAN)
        return found

    def _hold(self, entries: Iterable[StoredEntry]) -> None:
        """What is of about the same time must be in memory to be put in order; publishers write the times."""
        self._held += sum(map(_size, entries))
        if self._held > MOST_HELD:
            raise InputError(
                f"more than {MOST_HELD >> 20} MB of messages are of about the same time and cannot be put in order; "
                "ask for a shorter time, or for one topic of the family"
            )


def _size(entry: StoredEntry) -> int:
    return len(entry.payload) + _ENTRY_BYTES


def _distinct(entries: list[StoredEntry]) -> list[StoredEntry]:
    """Without those that a store has twice: it forgets ids after some minutes."""
    return [one for n, one in enumerate(entries) if n == 0 or position_of(one) != position_of(entries[n - 1])]
