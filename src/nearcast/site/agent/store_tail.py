"""Reads what a store takes in, once, for all who need it: the index of its streams, and those who listen.

Whether there is news is asked for all streams together, twice a second. A stream that is not the one that was read
before (a lost disk, a tail that a crash took) is read again from its beginning; each hour all are, which finds damaged
messages: the store leaves them out.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats.digest import content_hash
from nearcast.nats.streams import StoredEntry, StreamBounds, StreamError, StreamReader
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.agent.store_index import IndexedMessage, StoreIndex, StreamIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nearcast.nats.connection import Connection

__all__ = ["StoreTail", "entry_hash"]

_log = logging.getLogger(__name__)
_POLL_PERIOD = 0.5
_BATCH = 2_000
_RESCAN_PERIOD = 3_600.0
_RESCAN_RATE = 20_000.0  # messages a second: it is in no hurry


def entry_hash(entry: StoredEntry) -> int:
    """What replicas compare of a message."""
    return content_hash(entry.subject.encode(), entry.id, entry.payload)


@dataclass
class _Followed:
    """A stream. complete: all that it held at some time since the store was last connected has been read."""

    index: StreamIndex
    verified: bool = False
    complete: bool = False
    complete_since: float = 0.0
    rescan: StreamIndex | None = None
    rescanned_at: float = field(default_factory=time.monotonic)
    rescan_at: float = 0.0  # the next batch of the rescan


class StoreTail:
    """Follows the streams of one store that somebody wants.

    wanted: gives their names, of those that exist. stored: called with each batch that came since the index of a stream
    was complete. rescanned: called when a stream was read again from its beginning.
    """

    def __init__(
        self,
        store: Connection,
        index: StoreIndex,
        wanted: Callable[[Iterable[str]], set[str]],
        stored: Callable[[str, list[StoredEntry]], None],
        rescanned: Callable[[str], None],
    ) -> None:
        self.reader = StreamReader(store)
        self._index, self._wanted, self._stored, self._rescanned = index, wanted, stored, rescanned
        self._followed: dict[str, _Followed] = {}
        self._wake, self._read = asyncio.Event(), asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.rescan_period = _RESCAN_PERIOD

    async def start(self) -> None:
        """Follow from now on."""
        self._task = asyncio.create_task(self._run(), name="store tail")

    async def stop(self) -> None:
        """Stop, and write what was learnt."""
        await cancel_and_wait(self._task)
        for followed in self._followed.values():
            try:
                followed.index.flush()
            except sqlite3.Error as error:
                _log.warning("index of %s not written: %s", followed.index.name, error)

    def store_returned(self) -> None:
        """The store may have been restarted: whether it still has what was read is checked again."""
        for followed in self._followed.values():
            followed.verified = followed.complete = False
        self._wake.set()

    def index(self, stream: str) -> StreamIndex | None:
        """The index of a stream, once it covers all that the stream held when the store was connected."""
        followed = self._followed.get(stream)
        return followed.index if followed is not None and followed.complete else None

    def followed_for(self, stream: str) -> float:
        """For how many seconds all that came into a stream has been passed to `stored`."""
        followed = self._followed.get(stream)
        return time.monotonic() - followed.complete_since if followed is not None and followed.complete else 0.0

    async def current_index(self, stream: str, within: float) -> StreamIndex:
        """The index of a stream, up to what the stream holds now."""
        last = (await self.reader.bounds(stream)).last

        def current() -> bool:
            followed = self._followed.get(stream)
            return followed is not None and followed.complete and followed.index.position >= last

        if not current():
            self._wake.set()
            try:
                async with asyncio.timeout(within), self._read:
                    await self._read.wait_for(current)
            except TimeoutError:
                raise StreamError(f"stream {stream}: it is still being indexed") from None
        return self._followed[stream].index

    def rescan(self, stream: str) -> None:
        """Read a stream again from its beginning, beside all else."""
        followed = self._followed.get(stream)
        if followed is not None and followed.rescan is None:
            followed.rescan = self._index.rebuilt(stream)
            self._wake.set()

    async def _run(self) -> None:
        level = logging.WARNING
        while True:
            more = False
            try:
                more = await self._pass()
                level = logging.WARNING
            except (NearcastError, sqlite3.Error) as error:
                _log.log(level, "store not read: %s", error)
                level = logging.DEBUG  # it is tried again each period
            except Exception:
                _log.exception("store not read")
            async with self._read:
                self._read.notify_all()
            if not more:
                try:
                    async with asyncio.timeout(_POLL_PERIOD):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()

    async def _pass(self) -> bool:
        """Look at each stream once, and read a batch of those with news; whether one has more."""
        bounds = await self.reader.all_bounds()
        wanted = self._wanted(bounds)
        for name in self._followed.keys() - wanted:
            self._followed.pop(name).index.flush()
        more = False
        for name in wanted:
            followed = self._followed.get(name)
            if followed is None:
                followed = self._followed[name] = _Followed(self._index.stream(name))
            try:
                more |= await self._advance(name, followed, bounds[name])
                more |= await self._advance_rescan(name, followed, bounds[name])
            except StreamError as error:
                _log.warning("%s; trying again", error)
        return more

    async def _advance(self, name: str, followed: _Followed, bounds: StreamBounds) -> bool:
        if not followed.verified:
            await self._verify(name, followed, bounds)
        elif bounds.last < followed.index.position:
            self._restart(name, followed)
        index = followed.index
        index.removed(bounds.first, time.time())
        if index.position < bounds.last:
            entries = await self._read_batch(index, bounds.first, bounds.last)
            if followed.complete:
                self._stored(name, entries)
        if not followed.complete and index.position >= bounds.last:
            followed.complete, followed.complete_since = True, time.monotonic()
        index.flush()
        return index.position < bounds.last

    async def _read_batch(self, index: StreamIndex, first: int, last: int) -> list[StoredEntry]:
        entries = (await self.reader.read_raw(index.name, max(index.position + 1, first), _BATCH)).entries()
        while entries and entries[-1].sequence > last:
            entries.pop()
        messages = [IndexedMessage(entry.sequence, entry.time_us, entry_hash(entry)) for entry in entries]
        # Nothing more can be read although there should be: what is left is damaged or was removed meanwhile.
        index.add(messages, time.time(), 0 if entries else last)
        return entries

    async def _verify(self, name: str, followed: _Followed, bounds: StreamBounds) -> None:
        """Whether the stream still has the message that was read last."""
        index = followed.index
        if index.position and index.position >= bounds.first:
            same = False
            if index.position <= bounds.last:
                found = (await self.reader.read_raw(name, index.position, 1)).entries()
                same = any(one.sequence == index.position and entry_hash(one) == index.anchor for one in found)
            if not same:
                self._restart(name, followed)
        followed.verified = True

    def _restart(self, name: str, followed: _Followed) -> None:
        _log.warning(
            "stream %s is not the one that was indexed up to %d; reading it again", name, followed.index.position
        )
        self._replace(followed, self._index.rebuilt(name))
        followed.complete = False

    async def _advance_rescan(self, name: str, followed: _Followed, bounds: StreamBounds) -> bool:
        now = time.monotonic()
        if followed.complete and followed.rescan is None and now - followed.rescanned_at > self.rescan_period:
            self.rescan(name)
        fresh = followed.rescan
        if fresh is None or now < followed.rescan_at:
            return False
        followed.rescan_at = now + _BATCH / _RESCAN_RATE
        fresh.removed(bounds.first, time.time())
        if fresh.position < followed.index.position:
            await self._read_batch(fresh, bounds.first, followed.index.position)
            fresh.flush()
            return True
        self._replace(followed, fresh)
        followed.rescanned_at = now
        self._rescanned(name)
        return False

    def _replace(self, followed: _Followed, fresh: StreamIndex) -> None:
        self._index.replace(fresh)
        followed.index.replaced = True
        followed.index, followed.rescan = fresh, None
