"""What was seen recently, so that a message that comes twice is taken once."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RecentContents", "RecentIds"]

_REMEMBERED = 16_384


class RecentIds:
    """Two generations of ids: when the younger is full it becomes the older. Between n and 2 n are remembered."""

    __slots__ = ("_older", "_size", "_younger")

    def __init__(self, size: int = _REMEMBERED) -> None:
        self._size = size
        self._younger: set[bytes] = set()
        self._older: set[bytes] = set()

    def seen(self, message_id: bytes) -> bool:
        """Whether this id came before; it is remembered either way. No id is never the same as another."""
        if not message_id:
            return False
        if message_id in self._younger or message_id in self._older:
            return True
        if len(self._younger) >= self._size:
            self._rotate()
        self._younger.add(message_id)
        return False

    def add(self, ids: Iterable[bytes]) -> None:
        """Remember many at once."""
        if len(self._younger) >= self._size:
            self._rotate()
        self._younger.update(ids)

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._younger or message_id in self._older

    def _rotate(self) -> None:
        self._older, self._younger = self._younger, set()


class RecentContents:
    """Messages without an id that came recently, told apart by what they say: when each came. Times are seconds."""

    __slots__ = ("_order", "_times", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._order: deque[tuple[float, bytes]] = deque()
        self._times: dict[bytes, deque[float]] = {}

    def note(self, payload: bytes, now: float) -> None:
        """One came."""
        self._forget(now)
        content = blake2b(payload, digest_size=16).digest()
        self._order.append((now, content))
        self._times.setdefault(content, deque()).append(now)

    def match(self, payload: bytes, now: float) -> bool:
        """Whether one like it came within the window, and was not matched before."""
        self._forget(now)
        content = blake2b(payload, digest_size=16).digest()
        if content not in self._times:
            return False
        self._take_oldest(content)
        return True

    def _forget(self, now: float) -> None:
        while self._order and self._order[0][0] < now - self._window:
            came, content = self._order.popleft()
            if content in self._times and self._times[content][0] <= came:  # else it was matched
                self._take_oldest(content)

    def _take_oldest(self, content: bytes) -> None:
        times = self._times[content]
        times.popleft()
        if not times:
            del self._times[content]
