"""A cursor: a small file that says how far a subscriber has read; the next process of that name continues there.

It has the time up to which all that each store appended was read, the ids read last, and for older ones a high-water
mark per source. It is replaced as a whole, at most every 100 ms: after a kill, what was read since comes again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nearcast.client.delivered_ids import DeliveredIds
from nearcast.domain.names import check_name
from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.message import Message

__all__ = ["Cursor", "CursorState", "cursor_path"]

_log = logging.getLogger(__name__)
_SAVE_EVERY = 0.1
_SAVE_SHARE = 20  # a save that takes long is not made more often than leaves this many times as long for the rest
_RECENT = 4_096
_CHECKPOINTS = 4_096


class CursorState(msgspec.Struct, frozen=True):
    """The content of the file.

    read_until: by topic and site, microseconds since 1970 by this machine's clock. home_ahead_us: by how much the
    home's clock was ahead of it, if that is known.
    """

    topic: str
    read_until: dict[str, dict[str, int]]
    recent: list[bytes]
    high_water: dict[str, int]
    home_ahead_us: int | None = None


def cursor_path(cursor: str | Path) -> Path:
    """Of a cursor given by its name (then it is among the user's state files) or by its path."""
    if isinstance(cursor, Path):
        return cursor
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "nearcast" / "cursors" / check_name(cursor, "cursor")


class Cursor:
    """Of one subscription. positions: by topic and site, seconds ago at which all that a store appended had come.

    unread: how many messages came, and how many of them wait to be read.

    This machine's clock is read once: it may be set while the subscription lasts. It may also be wrong when the next
    process starts, as on a device without a battery for it: then the home's tells how long nothing was read.
    """

    def __init__(self, path: Path, topic: str) -> None:
        self._path, self._topic = path, topic
        self._read = DeliveredIds(_RECENT)
        self._given: Message | None = None
        self._arrivals: deque[tuple[int, int]] = deque(maxlen=_CHECKPOINTS)  # when so many had come
        self._epoch_us = time.time_ns() // 1000 - _steady_us()
        self._home_ahead_us: int | None = None
        self._until_us = self._now_us()
        self._snapshots = self._saved = 0  # the number of the last one
        self._saving = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
            self.state = msgspec.msgpack.decode(content, type=CursorState) if content else None
        except (OSError, msgspec.DecodeError) as error:
            raise InputError(f"cursor {str(path)!r} cannot be used: {error}") from error
        if self.state is not None:
            if self.state.topic != topic:
                raise InputError(f"cursor {str(path)!r} is of topic {self.state.topic}, not of {topic}")
            self._read.restore(self.state.recent, self.state.high_water)
            times = [us for sites in self.state.read_until.values() for us in sites.values()]
            self._until_us = min(times, default=self._until_us)

    def stopped_ago(self, topic: str) -> dict[str, float] | None:
        """By site, how many seconds ago its earlier process had read all of a topic; None when there was none."""
        sites = self.state.read_until.get(topic) if self.state is not None else None
        if not sites:
            return None
        return {site: self._seconds_since(us) for site, us in sites.items()}

    def note_home_time(self, home_us: int) -> None:
        """The home's clock shows this now."""
        self._home_ahead_us = home_us - self._now_us()

    def _seconds_since(self, us: int) -> float:
        """By this machine's clock or by the home's, whichever is longer. What was read before does not come again."""
        assert self.state is not None
        now_us, before, after = self._now_us(), self.state.home_ahead_us, self._home_ahead_us
        ago_us = now_us - us
        if before is not None and after is not None:
            ago_us = max(ago_us, ago_us + after - before)
        elif ago_us < 0:  # a clock was wrong, now or then: read all that is kept
            ago_us = now_us
        return max(0, ago_us) / 1e6

    def _now_us(self) -> int:
        return self._epoch_us + _steady_us()

    def given(self, message: Message | None) -> None:
        """The reader gets a message: the one before it has been read."""
        before, self._given = self._given, message
        if before is not None and before.id:
            self._read.seen(before.id.encode())
            self._read.note_time(before.stamp.source, before.stamp.published_us)

    def discard(self) -> None:
        """The message given last was not read: its reader failed."""
        self._given = None

    async def run(
        self, positions: Callable[[], dict[str, dict[str, float]]], unread: Callable[[], tuple[int, int]]
    ) -> None:
        """Save from now on."""
        pause = _SAVE_EVERY
        saved: CursorState | None = None
        while True:
            await asyncio.sleep(pause)
            state = self._snapshot(positions(), *unread())
            if state != saved:
                started = time.monotonic()
                try:
                    await asyncio.to_thread(self._save, state, self._snapshots)
                    saved = state
                except OSError as error:
                    _log.error("cursor %s is not saved, trying again: %s", self._path, error)
                pause = max(_SAVE_EVERY, _SAVE_SHARE * (time.monotonic() - started))

    def save(self, positions: dict[str, dict[str, float]], received: int, pending: int) -> None:
        """Save now, for the last time."""
        self._save(self._snapshot(positions, received, pending), self._snapshots)

    def _snapshot(self, positions: dict[str, dict[str, float]], received: int, pending: int) -> CursorState:
        self._snapshots += 1
        now_us = self._now_us()
        consumed = received - pending - (self._given is not None)
        while self._arrivals and self._arrivals[0][1] <= consumed:
            self._until_us = self._arrivals.popleft()[0]
        if consumed == received:
            self._until_us = now_us
        elif not self._arrivals or self._arrivals[-1][1] != received:
            self._arrivals.append((now_us, received))
        read_until = {
            topic: {site: min(now_us - int(ago * 1e6), self._until_us) for site, ago in sites.items()}
            for topic, sites in positions.items()
        }
        recent, high_water = self._read.recent(), self._read.high_water()
        return CursorState(self._topic, read_until, recent, high_water, self._home_ahead_us)

    def _save(self, state: CursorState, number: int) -> None:
        """In any thread; one that comes late does not replace a newer state."""
        temporary = self._path.with_name(self._path.name + ".new")
        with self._saving:
            if number <= self._saved:
                return
            with temporary.open("wb") as file:
                file.write(msgspec.msgpack.encode(state))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
            self._saved = number


def _steady_us() -> int:
    return time.monotonic_ns() // 1000
