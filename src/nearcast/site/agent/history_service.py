"""The history service of a site: finds past messages in the site's store and sends only those that match.

A request is for one page and names where the last one ended. Nothing is kept between requests: a slow client costs
nothing, and a client may continue at another store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from nearcast.codec import JSON
from nearcast.domain.topic import covers, overlaps
from nearcast.errors import InputError, NearcastError
from nearcast.filters import compile_condition
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint
from nearcast.nats.streams import StoredEntry, StreamReader
from nearcast.protocol.services import HistoryPage, HistoryRequest, StoredMessage

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection
    from nearcast.site.agent.topic_directory import TopicDirectory

__all__ = ["HistoryService"]

_PARALLEL_READS = 4
_BATCH = 1000
_PAGE_BYTES = 256 << 10
_PAGE_SCANS = 20_000
_FIRST_WINDOW = 256


class HistoryService:
    """Answers `read` and `ping` requests for the topics that this site's store keeps."""

    def __init__(self, directory: TopicDirectory, site: str, store: Connection) -> None:
        self._directory, self._site = directory, site
        self._reader = StreamReader(store)
        self._slots = asyncio.Semaphore(_PARALLEL_READS)
        self.endpoints = [
            Endpoint("history-ping", subjects.history(site, "ping"), None, self._ping),
            Endpoint("history-read", subjects.history(site, "read"), HistoryRequest, self._read, "msgpack"),
        ]

    async def _ping(self, request: None) -> None:
        if not self._reader.is_connected:
            raise NearcastError(f"the store of {self._site} is not connected")

    async def _read(self, request: HistoryRequest) -> HistoryPage:
        """A page. InputError: wrong wherever it is asked; any other error: this store cannot answer, another may."""
        async with self._slots:
            return await self._page(request)

    async def _page(self, request: HistoryRequest) -> HistoryPage:
        if request.results:
            channel, _, key = request.topic.partition(".")
            stream, subject = subjects.channel_stream(channel), subjects.channel_results(channel, key)
        else:
            stream = self._stream_of(request.topic)
            kind = subjects.notifications if request.notifications else subjects.publications
            subject = kind(request.topic)
        accepts = _filter(request)
        if request.last is not None and request.cursor is None:
            return await self._find_last(request, stream, subject, accepts)
        found: list[StoredMessage] = []
        size = scanned = 0
        position = request.cursor
        since = request.since_us if position is None else None
        while scanned < _PAGE_SCANS and size < _PAGE_BYTES:
            batch = await self._reader.read(stream, subject, position or 1, _BATCH, since_us=since)
            for entry in batch.entries:
                scanned += 1
                position = entry.sequence + 1
                if request.until_us is not None and entry.stored_us >= request.until_us:
                    return HistoryPage(found, None, entry.sequence)
                if accepts(entry):
                    found.append(
                        StoredMessage(subjects.topic_of(entry.subject), entry.id, entry.payload, entry.stored_us)
                    )
                    size += len(entry.payload) + 64
                    if size >= _PAGE_BYTES:
                        break
            else:
                if batch.exhausted:
                    return HistoryPage(found, None, max(batch.last_sequence, (position or 1) - 1))
            since = None
        return HistoryPage(found, position, (position or 1) - 1)

    async def _find_last(
        self, request: HistoryRequest, stream: str, subject: str, accepts: Callable[[StoredEntry], bool]
    ) -> HistoryPage:
        """Search backwards in growing windows for the start of the `last` matches; the client then reads from there."""
        first, last = await self._reader.bounds(stream)
        wanted, window = request.last or 0, _FIRST_WINDOW
        start = high = last + 1 if request.before is None else request.before
        while high > first and wanted > 0:
            if start - high > 5 * _PAGE_SCANS:
                return HistoryPage(before=high, remaining=wanted)
            low = max(first, high - window)
            matching = [e.sequence for e in await self._reader.read_range(stream, subject, low, high) if accepts(e)]
            if len(matching) >= wanted:
                return HistoryPage([], matching[-wanted], last)
            wanted -= len(matching)
            high, window = low, min(2 * window, _PAGE_SCANS)
        return HistoryPage([], high, last)

    def _stream_of(self, topic: str) -> str:
        stored = self._directory.stored_here()
        for spec in stored:
            if covers(spec.name, topic):
                return subjects.stream_name(spec.name)
        # A topic whose replicas have moved is requested here until all clients know of it: not the request's fault.
        kind = InputError if any(overlaps(spec.name, topic) for spec in stored) else NearcastError
        raise kind(f"topic {topic!r} is not one that the store of {self._site} keeps")


def _filter(request: HistoryRequest) -> Callable[[StoredEntry], bool]:
    """Time range and condition; the ends of the range also limit what is read."""
    condition = None if request.where is None else compile_condition(request.where)
    since, until = request.since_us, request.until_us

    def accepts(entry: StoredEntry) -> bool:
        if since is not None and entry.stored_us < since:
            return False
        if until is not None and entry.stored_us >= until:
            return False
        if condition is None:
            return True
        try:
            return condition(JSON.decode(entry.payload))
        except msgspec.DecodeError:
            return False  # not JSON: no field of it can match

    return accepts
