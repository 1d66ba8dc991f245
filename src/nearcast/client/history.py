"""Past messages: find the stores that advertise a topic, ask the nearest, go to the next when it does not answer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from nearcast.domain.topic import check_pattern
from nearcast.errors import InputError, NearcastError
from nearcast.filters import Condition, compile_condition
from nearcast.message import Message
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode
from nearcast.nats.deduplication import RecentIds
from nearcast.nats.rpc import NoAnswerError, RemoteError, call
from nearcast.nats.stamp import header_block, is_forged
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.services import HistoryPage, HistoryRequest, StoresAnswer, TopicsRequest

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = [
    "FixedStore",
    "History",
    "HistoryError",
    "HistoryQuery",
    "StoreFinder",
    "condition_tree",
    "history_request",
    "microseconds",
    "rank_stores",
]

_log = logging.getLogger(__name__)
_PING_TIMEOUT = 1.0
_PAGE_TIMEOUT = 10.0
_ADVERTISED_WITHIN = 5.0
# Stores that answer pings and give no page are asked again for this long.
_UNAVAILABLE_LIMIT = 15.0
_UNAVAILABLE_PAUSE = 0.2
_OVERLAP_US = 5_000_000
# Round trips this close are equal: the paper lets requests be shared among stores at the same distance.
_EQUAL_SECONDS, _EQUAL_SHARE = 0.0005, 0.2


class HistoryError(NearcastError, LookupError):
    """No store that advertises the topic answers."""


def rank_stores(round_trips: dict[str, float], choice: random.Random) -> list[str]:
    """Nearest first; stores at about the same distance as the nearest of their group in random order."""
    ranked: list[str] = []
    left = sorted(round_trips, key=lambda site: round_trips[site])
    while left:
        limit = round_trips[left[0]] * (1 + _EQUAL_SHARE) + _EQUAL_SECONDS
        group = [site for site in left if round_trips[site] <= limit]
        left = left[len(group) :]
        choice.shuffle(group)
        ranked.extend(group)
    return ranked


class Finder(Protocol):
    """Says which stores to ask about a topic, nearest first."""

    async def find(self, topic: str) -> list[str]: ...


class FixedStore:
    """Finds one store, always the same: the cloud's, which keeps the results of channels."""

    def __init__(self, site: str) -> None:
        self._site = site

    async def find(self, topic: str) -> list[str]:
        return [self._site]


class StoreFinder:
    """Finds the stores that hold a topic, by the advertisements the home has heard and by measured round trips."""

    def __init__(self, current: Callable[[], Connection], choice: random.Random) -> None:
        self._current, self._choice = current, choice

    async def find(self, topic: str) -> list[str]:
        """The stores that advertise a topic and answer, nearest first; those that lack something last."""
        answer = await self._ask_home(topic)
        clock = asyncio.get_running_loop().time
        deadline = clock() + _ADVERTISED_WITHIN
        while not answer.stores and answer.configured and clock() < deadline:
            await asyncio.sleep(0.1)  # sites that have just come up tell each other in the background
            answer = await self._ask_home(topic)
        if not answer.stores:
            hint = "its stores are down" if answer.configured else "give the topic `replicas` in the configuration"
            raise HistoryError(f"topic {topic}: no store advertises it; {hint}")
        trips = await asyncio.gather(*(self._round_trip(site) for site in answer.stores))
        near = {site: trip for site, trip in zip(answer.stores, trips, strict=True) if trip is not None}
        return sorted(rank_stores(near, self._choice), key=lambda site: site in answer.behind)

    async def _ask_home(self, topic: str) -> StoresAnswer:
        connection = self._current()
        home = connection.server_name
        try:
            subject = subjects.history(home, "find")
            return await call(connection, subject, TopicsRequest(topic), StoresAnswer, timeout=2.0)
        except (NoAnswerError, RemoteError) as error:
            raise HistoryError(f"topic {topic}: the agent of site {home or '(unknown)'} does not answer") from error

    async def _round_trip(self, site: str) -> float | None:
        """The shorter of two, so that one stray delay does not decide."""
        clock = asyncio.get_running_loop().time
        best: float | None = None
        for _ in range(2):
            start = clock()
            try:
                await call(self._current(), subjects.history(site, "ping"), None, NoneType, timeout=_PING_TIMEOUT)
            except (NoAnswerError, RemoteError):
                return best
            best = min(best or _PING_TIMEOUT, clock() - start)
        return best


class _End(msgspec.Struct, frozen=True):
    """Where a round of pages ended: the store, its last sequence when the first page was read, the last time seen."""

    store: str = ""
    sequence: int = 0
    last_us: int = 0


class HistoryQuery:
    """Past messages in the order of their times. Iterate it; pages are fetched one ahead of the reader.

    current: gives the connection to ask through; it changes when the client moves. store: the site that answered last.
    bytes_received: what crossed the network for it. incomplete: only a store answered that was still catching up.
    """

    def __init__(
        self,
        current: Callable[[], Connection],
        finder: Finder,
        request: HistoryRequest,
        decode: Callable[[bytes], Any],
        limit: int | None,
    ) -> None:
        self._current, self._finder, self._request = current, finder, request
        self._decode, self._limit = decode, limit
        self.store = self._refusal = ""
        self.bytes_received = 0
        self.incomplete = False
        self._end, self._after = _End(), ""  # after: the store whose sequence the request has
        self._first_us = 0

    def continue_after_end(self) -> None:
        """Have the next round of pages give what was stored since the first page of the last one was read."""
        end = self._end
        if end.store:
            self._request = msgspec.structs.replace(
                self._request, cursor=None, since_us=None, last=None, before=None, stored_after=end.sequence
            )
            self._end = _End("", 0, end.last_us)
            self._after = end.store

    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        left = self._limit
        async for page in self.pages():
            for stored in page.messages:
                if left == 0:
                    return
                if is_forged(stored.topic, stored.id):
                    continue
                yield Message(stored.topic, stored.payload, header_block(stored.id), self._decode)
                if left is not None:
                    left -= 1

    async def pages(self) -> AsyncGenerator[HistoryPage, None]:
        """Page after page, from the nearest store that answers; another one goes on where it stopped."""
        request, recent = self._request, RecentIds(1 << 16)
        clock = asyncio.get_running_loop().time
        stores, give_up_at = await self._finder.find(request.topic), clock() + _UNAVAILABLE_LIMIT
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
                stores, refused = await self._finder.find(request.topic), set()
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
                    if not self._end.store:
                        self._end = _End(store, page.end, self._end.last_us)
                    self.incomplete |= page.incomplete
                    fresh = [m for m in page.messages if not recent.seen(m.id)]
                    if fresh:
                        self._end = msgspec.structs.replace(self._end, last_us=fresh[-1].time_us)
                        self._first_us = self._first_us or fresh[0].time_us
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
        """Sequences mean nothing at another store: there, go on a little before the last time that was seen."""
        if not request.stored_after or store == self._after:
            return request
        since = max(self._end.last_us - _OVERLAP_US, self._first_us)
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

    def __init__(self, prepare: Callable[[], Awaitable[HistoryQuery]]) -> None:
        self._prepare = prepare
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
        self._query = await self._prepare()
        async for message in self._query:
            yield message


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
        return int(when.timestamp() * 1e6)
    if isinstance(when, int | float):
        return int(when * 1e6)
    raise InputError(f"{name} is {when!r}; a datetime or seconds since 1970 are needed")


def condition_tree(where: Condition | None) -> list[object] | None:
    """The condition as a request carries it; refused here rather than at the store when it is not one."""
    if where is None:
        return None
    if not isinstance(where, Condition):
        raise InputError(f'where is {where!r}; make a condition with field("name") > 1 and the like')
    compile_condition(where.tree)
    return where.tree
