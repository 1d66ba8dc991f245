"""Copies messages from the store of another replica into this one, at a limited rate, beside live messages."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from nearcast.nats import subjects
from nearcast.nats.stream_publisher import StreamPublisher
from nearcast.nats.streams import FIRST_STORED, StreamReader, original_headers, parse_entry
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.connection import Connection
    from nearcast.nats.streams import StoredEntry
    from nearcast.site.agent.store_tail import StoreTail

__all__ = ["ReplicaCopy"]

_RATE = 30_000.0  # messages a second, of all topics together
_BATCH = 2_000
_READS_AHEAD = 2
_TIMEOUT = 10.0


class ReplicaCopy:
    """For all topics of one store. connection: through which other stores are read. store: to this one."""

    def __init__(self, site: str, connection: Connection, store: Connection, tail: StoreTail) -> None:
        self._site, self._connection, self._tail = site, connection, tail
        self._publisher = StreamPublisher(store, _TIMEOUT)
        self._readers: dict[str, StreamReader] = {}
        self._free_at = 0.0
        self._clock = asyncio.get_running_loop().time

    async def fetch(
        self, topic: str, peer: str, ranges: list[tuple[int, int]], wanted: Callable[[StoredEntry], bool]
    ) -> int:
        """Read from the peer's store what is wanted, and store it here under the subjects it has there; how many.

        The next messages are on their way while these are stored.
        """
        stream, count = subjects.stream_name(topic), 0
        newest_us = int((time.time() - 3.0) * 1e6)
        reader = self._readers.setdefault(peer, StreamReader(self._connection, subjects.store_api(peer), _TIMEOUT))
        spans = deque(
            (start, min(start + _BATCH, last + 1)) for first, last in ranges for start in range(first, last + 1, _BATCH)
        )
        reads: deque[asyncio.Task[list[tuple[StoredEntry, bytes]]]] = deque()
        try:
            while spans or reads:
                while spans and len(reads) < _READS_AHEAD:
                    reads.append(asyncio.create_task(_read_span(reader, stream, *spans.popleft())))
                messages = []
                for entry, headers in await reads[0]:
                    if wanted(entry) and (entry.id or entry.time_us < newest_us):
                        block = _with_first_stored(original_headers(headers), entry.stored_us)
                        messages.append((subjects.repair(self._site, stream, entry.subject), block, entry.payload))
                reads.popleft()
                if messages:
                    await self._pace(len(messages))
                    await self._publisher.publish_blocks(messages)
                    count += len(messages)
        finally:
            await cancel_and_wait(*reads)
        if count:
            await self._tail.current_index(stream, 3 * _TIMEOUT)
        return count

    async def _pace(self, count: int) -> None:
        """Wait until this many more may be sent; all rounds share the rate."""
        now = self._clock()
        wait, self._free_at = self._free_at - now, max(self._free_at, now) + count / _RATE
        if wait > 0:
            await asyncio.sleep(wait)


async def _read_span(reader: StreamReader, stream: str, start: int, end: int) -> list[tuple[StoredEntry, bytes]]:
    """The messages of a stream from a sequence to below another, with their header blocks."""
    found: list[tuple[StoredEntry, bytes]] = []
    while start < end:
        raw = await reader.read_raw(stream, start, end - start)
        if not raw.payloads:
            break
        for payload, headers in zip(raw.payloads, raw.headers, strict=True):
            entry = parse_entry(payload, headers)
            start = entry.sequence + 1
            if entry.sequence < end:
                found.append((entry, headers))
    return found


def _with_first_stored(block: bytes, stored_us: int) -> bytes:
    """A header block that says when a replica first stored the message, if it does not say so already."""
    if FIRST_STORED in block:
        return block
    return b"%b%b %d\r\n\r\n" % (block[:-2] if block else b"NATS/1.0\r\n", FIRST_STORED, stored_us)
