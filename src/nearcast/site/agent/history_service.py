"""The history service of a site: finds past messages in the site's store and sends only those that match.

A request is for one page and names where the last one ended. Nothing is kept between requests: a slow client costs
nothing, and a client may continue at another store. Past messages come in the order of time; the *tail*, what the store
appended recently, in the order of the store, whatever the times are: subscribers fill gaps from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from nearcast.codec import JSON
from nearcast.domain.topic import TopicSpec, covers, overlaps
from nearcast.errors import InputError, NearcastError
from nearcast.filters import compile_condition, condition_cost
from nearcast.nats import subjects
from nearcast.nats.rpc import CALLER, Endpoint
from nearcast.protocol.services import HistoryPage, HistoryRequest, StoredMessage, TailPage, TailRequest
from nearcast.site.agent.fair_slots import FairSlots
from nearcast.site.agent.time_order import BEGINNING, TimeOrder, following, position_of

if TYPE_CHECKING:
    from nearcast.nats.streams import StoredEntry
    from nearcast.protocol.services import Position
    from nearcast.site.agent.store_tail import StoreTail
    from nearcast.site.agent.topic_directory import TopicDirectory

__all__ = ["HistoryService"]

_PARALLEL_READS = 4
_PAGE_BYTES = 256 << 10
_PAGE_SCANS = 20_000
_PAGE_READS = 50  # of the store: most of what is there may be of other topics
_USUAL_COST, _LEAST_SCANS = 20, 500
_SCANS_AT_ONCE = 500
_FOREVER_US = 1 << 53
_INDEX_LIMIT = 5.0
_TAIL_BATCH = 1000
_CLOCKS_APART_US = 60_000_000  # of stores, at most


class HistoryService:
    """Answers `read`, `tail` and `ping` requests for the topics that this site's store keeps.

    behind: whether it lacks some messages of a topic.
    """

    def __init__(self, directory: TopicDirectory, site: str, tail: StoreTail, behind: Callable[[str], bool]) -> None:
        self._directory, self._site, self._tail, self._behind = directory, site, tail, behind
        self._slots, self._tail_slots = FairSlots(_PARALLEL_READS), FairSlots(_PARALLEL_READS)
        self.endpoints = [
            Endpoint("history-ping", subjects.history(site, "ping"), None, self._ping),
            Endpoint("history-read", subjects.history(site, "read"), HistoryRequest, self._read, "msgpack", _scope),
            Endpoint("history-tail", subjects.history(site, "tail"), TailRequest, self._read_tail, "msgpack", _scope),
        ]

    async def _ping(self, request: None) -> None:
        if not self._tail.reader.is_connected:
            raise NearcastError(f"the store of {self._site} is not connected")

    async def _read(self, request: HistoryRequest) -> HistoryPage:
        """A page. InputError: wrong wherever it is asked; any other error: this store cannot answer, another may."""
        async with self._slots.slot(CALLER.get()):
            stream, subject, spec = self._source(request)
            if spec is None:
                return await self._page(request, stream, subject, BEGINNING)
            behind = self._behind(spec.name)
            if behind and not request.incomplete:
                raise NearcastError(f"the store of {self._site} is catching up with topic {spec.name}")
            # A message that came by repair is stored for longer: its time decides, as at the other stores.
            oldest = (int((time.time() - spec.keep_seconds) * 1e6), b"") if spec.keep_seconds else BEGINNING
            page = await self._page(request, stream, subject, oldest)
            if not behind:
                return page
            held = (await self._tail.current_index(stream, _INDEX_LIMIT)).count()
            return msgspec.structs.replace(page, incomplete=True, held=held)

    async def _page(self, request: HistoryRequest, stream: str, subject: str, oldest: Position) -> HistoryPage:
        index = await self._tail.current_index(stream, _INDEX_LIMIT)
        order = TimeOrder(self._tail.reader, index, subject, request.stored_after)
        accepts = _filter(request, self._tail.reader.can_pass_on)
        scans = _scans(request)
        if request.last is not None and request.cursor is None:
            page = await self._find_last(request, order, oldest, accepts)
            return msgspec.structs.replace(page, end=order.end)
        start = max(oldest, request.cursor or (request.since_us or 0, b""))
        until = _FOREVER_US if request.until_us is None else request.until_us
        found: list[StoredMessage] = []
        size = scanned = reads = 0
        async with contextlib.aclosing(order.forwards(start, until)) as lists:
            async for entries in lists:
                reads += 1
                for entry in entries:
                    scanned += 1
                    if accepts(entry):
                        size += len(entry.payload) + 64
                        if found and size > _PAGE_BYTES:  # with it, the page might be more than the broker takes
                            return HistoryPage(found, position_of(entry), order.end)
                        found.append(_stored_message(entry))
                    if size >= _PAGE_BYTES or scanned >= scans:
                        return HistoryPage(found, following(position_of(entry)), order.end)
                    if scanned % _SCANS_AT_ONCE == 0:
                        await asyncio.sleep(0)  # the agent has other things to do, too
                if reads >= _PAGE_READS and order.reached_us > start[0]:
                    return HistoryPage(found, (order.reached_us, b""), order.end)
        return HistoryPage(found, None, order.end)

    async def _find_last(
        self, request: HistoryRequest, order: TimeOrder, oldest: Position, accepts: Callable[[StoredEntry], bool]
    ) -> HistoryPage:
        """Search backwards for the start of the `last` matches; the client then reads from there."""
        wanted, scanned, reads = request.last or 0, 0, 0
        until = _FOREVER_US if request.until_us is None else request.until_us
        first = before = request.before or (until, b"")
        start = max(oldest, (request.since_us or 0, b""))
        async with contextlib.aclosing(order.backwards(before)) as lists:
            async for entries in lists:
                reads += 1
                for entry in entries:
                    scanned += 1
                    before = position_of(entry)
                    if before < start:
                        return HistoryPage([], start)
                    wanted -= accepts(entry)
                    if wanted <= 0:
                        return HistoryPage([], before)
                    if scanned % _SCANS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                before = (order.reached_us + 1, b"")
                if (scanned > 5 * _scans(request) or reads >= _PAGE_READS) and before < first:
                    return HistoryPage(before=before, remaining=wanted)
        return HistoryPage([], start)

    async def _read_tail(self, request: TailRequest) -> TailPage:
        stream, subject, _ = self._source(request)
        reader, now_us = self._tail.reader, time.time_ns() // 1000
        since = now_us - request.within_us if request.cursor is None else None
        async with self._tail_slots.slot(CALLER.get()):
            batch = await reader.read(
                stream, subject, request.cursor or 1, _TAIL_BATCH, since_us=since, max_bytes=_PAGE_BYTES
            )
        # What repair fetched was stored elsewhere long ago: subscribers had it then, or did not exist.
        oldest = now_us - request.within_us - _CLOCKS_APART_US
        found: list[StoredMessage] = []
        size = 0
        for entry in batch.entries:
            if entry.stored_us < oldest or not reader.can_pass_on(entry):
                continue
            size += len(entry.payload) + 64
            if found and size > _PAGE_BYTES:  # with it, the page might be more than the broker takes
                return TailPage(found, entry.sequence)
            found.append(_stored_message(entry))
        if batch.exhausted or not batch.entries:
            return TailPage(found, None)
        return TailPage(found, batch.entries[-1].sequence + 1)

    def _source(self, request: HistoryRequest | TailRequest) -> tuple[str, str, TopicSpec | None]:
        """The stream and the subject that are asked for, and the topic if it is no channel."""
        if request.results:
            channel, _, key = request.topic.partition(".")
            return subjects.channel_stream(channel), subjects.channel_results(channel, key), None
        spec = self._spec_of(request.topic)
        kind = subjects.notifications if request.notifications else subjects.publications
        return subjects.stream_name(spec.name), kind(request.topic), spec

    def _spec_of(self, topic: str) -> TopicSpec:
        stored = self._directory.stored_here()
        for spec in stored:
            if covers(spec.name, topic):
                return spec
        # A topic whose replicas have moved is requested here until all clients know of it: not the request's fault.
        kind = InputError if any(overlaps(spec.name, topic) for spec in stored) else NearcastError
        raise kind(f"topic {topic!r} is not one that the store of {self._site} keeps")


def _scans(request: HistoryRequest) -> int:
    """How many messages are looked at for one page: fewer, the more a condition has to compare."""
    cost = 0 if request.where is None else condition_cost(request.where)
    return max(_LEAST_SCANS, _PAGE_SCANS * _USUAL_COST // max(cost, _USUAL_COST))


def _filter(request: HistoryRequest, can_pass_on: Callable[[StoredEntry], bool]) -> Callable[[StoredEntry], bool]:
    """The condition; times limit what is read. What is too large for an answer is left out."""
    if request.where is None:
        return can_pass_on
    condition = compile_condition(request.where)

    def accepts(entry: StoredEntry) -> bool:
        if not can_pass_on(entry):
            return False
        try:
            return condition(JSON.decode(entry.payload))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False  # not JSON, or nested without end: no field of it can match

    return accepts


def _stored_message(entry: StoredEntry) -> StoredMessage:
    return StoredMessage(subjects.topic_of(entry.subject), entry.id, entry.payload, entry.time_us)


def _scope(request: HistoryRequest | TailRequest) -> str:
    return subjects.history_scope(request.topic, results=request.results)
