"""Past messages: ask the nearest store page by page, go to the next when it does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.client.store_finder import HistoryError
from nearcast.domain.topic import check_pattern
from nearcast.errors import InputError
from nearcast.filters import Condition, compile_condition
from nearcast.message import Message
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode
from nearcast.nats.deduplication import RecentIds
from nearcast.nats.rpc import NoAnswerError, RemoteError, call
from nearcast.nats.stamp import header_block, is_forged
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.services import HistoryPage, HistoryRequest

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = [
    "History",
    "HistoryQuery",
    "condition_tree",
    "history_request",
    "microseconds",
]

_log = logging.getLogger(__name__)
_PAGE_TIMEOUT = 10.0
# Stores that answer pings and give no page are asked again for this long.
_UNAVAILABLE_LIMIT = 15.0
_UNAVAILABLE_PAUSE = 0.2
_OVERLAP_US = 5_000_000
_LATEST = 9_007_199_254  # seconds since 1970: requests count microseconds in 53 bits


class HistoryQuery:
    """Pages of past messages in the order of their times, fetched one ahead of the reader.

    current: gives the connection to ask through; it changes when the client moves. find_stores: of a topic, nearest
    first. store: the site that answered last. bytes_received: what crossed the network for it. incomplete: only a store
    answered that was still catching up.
    """

    def __init__(
        self,
        current: Callable[[], Connection],
        find_stores: Callable[[str], Awaitable[list[str]]],
        request: HistoryRequest,
    ) -> None:
        self._current, self._find_stores, self._request = current, find_stores, request
        self.store = self._refusal = ""
        self.bytes_received = 0
        self.incomplete = False
        self._end_store, self._end = "", 0  # of this round of pages, and its last sequence when the first was read
        self._after = ""  # the store whose sequence the request has
        self._first_us = self._last_us = 0  # times that were seen

    def restart(self) -> None:
        """Have the next round of pages give all again."""
        self._end_store, self._end, self._after, self._last_us = "", 0, "", 0
        self.incomplete = False

    def continue_after_end(self) -> None:
        """Have the next round of pages give what was stored since the first page of the last one was read."""
        if self._end_store:
            self._request = msgspec.structs.replace(
                self._request, cursor=None, since_us=None, last=None, before=None, stored_after=self._end
            )
            self._after, self._end_store, self._end = self._end_store, "", 0

    async def pages(self) -> AsyncGenerator[HistoryPage, None]:
        """Page after page, from the nearest store that answers; another one continues where it stopped."""
        request, recent = self._request, RecentIds(1 << 16)
        clock = asyncio.get_running_loop().time
        stores, give_up_at = await self._find_stores(request.topic), clock() + _UNAVAILABLE_LIMIT
        refused: set[str] = set()
        while True:
            left = [site for site in stores if site not in refused]
            store = self._after if self._after in left else next(iter(left), "")
            if not store and not request.incomplete:  # better some of it than nothing
                request, refused = msgspec.structs.replace(request, incomplete=True), set()
                stores = await self._fullest_first(stores)
                continue
            if not store:
                if not stores or clock() > give_up_at:
                    why = f"; the last one asked: {self._refusal}" if self._refusal else ""
                    raise HistoryError(f"topic {request.topic}: no store that advertises it answers{why}")
                await asyncio.sleep(_UNAVAILABLE_PAUSE)
                stores, refused = await self._find_stores(request.topic), set()
                request = msgspec.structs.replace(request, incomplete=False)
                continue
            self.store = store
            request = self._for_store(request, store)
            ahead: asyncio.Task[HistoryPage | None] | None = None
            try:
                page = await self._fetch(store, request)
                while page is not None:
                    following = _next(request, page)
                    if following is not None:
                        ahead = asyncio.create_task(self._fetch(store, following))
                    if not self._end_store:
                        self._end_store, self._end = store, page.end
                    self.incomplete |= page.incomplete
                    fresh = [m for m in page.messages if not recent.seen(m.id)]
                    if fresh:
                        self._first_us, self._last_us = self._first_us or fresh[0].time_us, fresh[-1].time_us
                    yield msgspec.structs.replace(page, messages=fresh)
                    if following is None or ahead is None:
                        return
                    request, page = following, await ahead
                    give_up_at = clock() + _UNAVAILABLE_LIMIT
            finally:
                await cancel_and_wait(ahead)
            _log.warning("history of %s: the store of %s does not answer: %s", request.topic, store, self._refusal)
            refused.add(store)

    async def _fullest_first(self, stores: list[str]) -> list[str]:
        """By how much they have: one lost its disk, another only has not compared yet. Without an answer: last."""
        if len(stores) < 2:
            return stores
        nothing = msgspec.structs.replace(
            self._request, incomplete=True, until_us=0, last=None, cursor=None, before=None, stored_after=0
        )
        pages = await asyncio.gather(*(self._fetch(store, nothing) for store in stores))
        by_store = dict(zip(stores, pages, strict=True))

        def rank(store: str) -> tuple[bool, bool, int]:
            page = by_store[store]
            return (True, True, 0) if page is None else (False, page.incomplete, -page.held)

        return sorted(stores, key=rank)

    def _for_store(self, request: HistoryRequest, store: str) -> HistoryRequest:
        """Sequences mean nothing at another store: there, continue a little before the last time that was seen."""
        if not request.stored_after or store == self._after:
            return request
        since = max(self._last_us - _OVERLAP_US, self._first_us)
        return msgspec.structs.replace(request, stored_after=0, since_us=since, cursor=None)

    async def _fetch(self, store: str, request: HistoryRequest) -> HistoryPage | None:
        """A page, or nothing when this store cannot answer; InputError when no store could."""
        scope = subjects.history_scope(request.topic, results=request.results)
        subject = f"{subjects.history(store, 'read')}.{scope}"
        try:
            raw = await call(self._current(), subject, request, msgspec.Raw, timeout=_PAGE_TIMEOUT, encoding="msgpack")
        except (NoAnswerError, RemoteError) as error:
            self._refusal = str(error)
            return None
        self.bytes_received += len(bytes(raw))
        try:
            return decode(bytes(raw), HistoryPage, "msgpack")
        except MalformedError as error:
            self._refusal = f"{store}: the page is unreadable: {error}"
            return None


class History:
    """Past messages: `async for message in history`. What the topic is, and which store is near, is found out then."""

    def __init__(
        self, prepare: Callable[[], Awaitable[HistoryQuery]], decode: Callable[[bytes], Any], limit: int | None
    ) -> None:
        self._prepare, self._decode, self._limit = prepare, decode, limit
        self._query: HistoryQuery | None = None

    @property
    def store(self) -> str:
        """The site whose store answered."""
        return self._query.store if self._query else ""

    @property
    def incomplete(self) -> bool:
        """Whether messages may be missing, because only a store answered that is still catching up with the others."""
        return self._query.incomplete if self._query else False

    @property
    def bytes_received(self) -> int:
        """What crossed the network so far."""
        return self._query.bytes_received if self._query else 0

    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        self._query, left = await self._prepare(), self._limit
        async for page in self._query.pages():
            for stored in page.messages:
                if left == 0:
                    return
                if is_forged(stored.topic, stored.id):
                    continue
                yield Message(stored.topic, stored.payload, header_block(stored.id), self._decode)
                if left is not None:
                    left -= 1


def _next(request: HistoryRequest, page: HistoryPage) -> HistoryRequest | None:
    if page.before is not None:
        return msgspec.structs.replace(request, before=page.before, last=page.remaining)
    if page.cursor is None:
        return None
    return msgspec.structs.replace(request, cursor=page.cursor)


def history_request(
    topic: str,
    since: datetime | float | None,
    until: datetime | float | None,
    last: int | None,
    where: Condition | None,
) -> HistoryRequest:
    """The request for a query, checked."""
    check_pattern(topic)
    if last is not None and (not isinstance(last, int) or last < 1):
        raise InputError(f"last is {last!r}; a whole number, at least 1, is needed")
    times = microseconds(since, "since"), microseconds(until, "until")
    return HistoryRequest(topic, False, *times, last, condition_tree(where))


def microseconds(when: datetime | float | None, name: str) -> int | None:
    """A time as a request carries it: a datetime with a time zone, or seconds since 1970."""
    if when is None:
        return None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InputError(f"{name} is {when!r}, which has no time zone; use datetime.now(UTC) or the like")
        seconds = when.timestamp()
    elif isinstance(when, int | float):
        seconds = when
    else:
        raise InputError(f"{name} is {when!r}; a datetime or seconds since 1970 are needed")
    if not abs(seconds) <= _LATEST:  # which NaN is not
        raise InputError(f"{name} is {when!r}; allowed: times until the year 2255")
    return int(seconds * 1e6)


def condition_tree(where: Condition | None) -> list[object] | None:
    """The condition as a request carries it; refused here rather than at the store when it is not one."""
    if where is None:
        return None
    if not isinstance(where, Condition):
        raise InputError(f'where is {where!r}; make a condition with field("name") > 1 and the like')
    compile_condition(where.tree)
    return where.tree
