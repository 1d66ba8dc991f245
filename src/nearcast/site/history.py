"""The history service of a site: finds past messages in the site's store and sends only those that match.

Requests are for one page and name where the last one ended, so nothing is kept between them, a slow client slows
nobody, and a client may go on at another store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError

from nearcast.codec import JSON
from nearcast.domain.topic import covers, overlaps
from nearcast.errors import InputError, NearcastError
from nearcast.filters import compile_condition
from nearcast.nats import subjects
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.streams import StoredEntry, StreamReader
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.services import HistoryPage, HistoryRequest, StoredMessage

if TYPE_CHECKING:
    from nearcast.domain.deployment import Deployment
    from nearcast.nats.connection import Connection

__all__ = ["HistoryService"]

_log = logging.getLogger(__name__)
_AT_ONCE = 4
_BATCH = 1000
_PAGE_BYTES = 256 << 10
_PAGE_SCANS = 20_000
_FIRST_WINDOW = 256


class HistoryService:
    """Answers `read` and `ping` requests for the topics that this site's store keeps."""

    def __init__(self, deployment: Deployment, site: str, broker: Connection, store: Connection) -> None:
        self.deployment, self._site, self._broker = deployment, site, broker
        self._reader = StreamReader(store)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriptions: list[Any] = []

    async def start(self) -> None:
        """Begin to answer."""
        for verb, sink in (("ping", self._pinged), ("read", self._asked)):
            self._subscriptions.append(await self._broker.subscribe_raw(subjects.history(self._site, verb), sink))

    async def stop(self) -> None:
        """Stop answering; what is under way is given up."""
        for subscription in self._subscriptions:
            await self._broker.unsubscribe_raw(subscription)
        await cancel_and_wait(*self._tasks)

    def _pinged(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        if self._reader.is_connected:  # an agent without its store is no place to ask
            self._broker.send(reply, b"", b"")

    def _asked(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        task = asyncio.create_task(self._answer(reply, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, reply: str, payload: bytes) -> None:
        async with self._slots:
            try:
                page = await self._page(msgspec.msgpack.decode(payload, type=HistoryRequest))
            except (InputError, msgspec.DecodeError) as error:
                page = HistoryPage(error=str(error))
            except (NearcastError, NatsError, TimeoutError) as error:
                _log.warning("history at %s: %s", self._site, error)
                page = HistoryPage(unavailable=str(error))
        try:
            self._broker.send(reply, b"", msgspec.msgpack.encode(page))
        except ConnectionLostError as error:
            _log.warning("history at %s: %s", self._site, error)

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
        """Go backwards in growing windows until `last` matches are behind us; the client then reads on from there."""
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
        stored = self.deployment.stored_at(self._site)
        for spec in stored:
            if covers(spec.name, topic):
                return subjects.stream_name(spec.name)
        # A topic whose replicas have moved is asked for here until everybody has heard of it.
        kind = InputError if any(overlaps(spec.name, topic) for spec in stored) else NearcastError
        raise kind(f"topic {topic!r} is not one that the store of {self._site} keeps")


def _filter(request: HistoryRequest) -> Callable[[StoredEntry], bool]:
    """The whole filter but the time range's ends, which also say where to start and stop."""
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
