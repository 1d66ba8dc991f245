"""The ids seen lately, so that a message that comes twice is taken once."""

from __future__ import annotations

__all__ = ["RecentIds"]

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
            self._older, self._younger = self._younger, set()
        self._younger.add(message_id)
        return False

    def __contains__(self, message_id: bytes) -> bool:
        return message_id in self._younger or message_id in self._older
