"""Numbers of publications that got no quorum in time.

Numbers have no gaps, and workers wait for a missing one. One that failed does not come any more: the publications of
the next ten minutes say so in their ids. Workers wait for a minute; one that starts later sees the gap as well.
"""

from __future__ import annotations

from collections import deque

from nearcast.nats.stamp import number_field

__all__ = ["GivenUpNumbers"]

_TOLD_FOR = 600.0  # s
_RANGES = 64


class GivenUpNumbers:
    """Of the publications of one client to one topic. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._ranges: deque[tuple[int, int, float]] = deque(maxlen=_RANGES)  # first, last, told until

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, number: int, now: float) -> None:
        """This one failed. Those of an outage fail one after the other, and make one range."""
        until = now + _TOLD_FOR
        for at, (first, last, _) in enumerate(self._ranges):
            if first - 1 <= number <= last + 1:
                self._ranges[at] = (min(first, number), max(last, number), until)
                return
        self._ranges.append((number, number, until))

    def number_field(self, number: int, now: float) -> int | str:
        """What the id of the next publication says: its number, and one of the ranges in turn."""
        while self._ranges:
            first, last, until = self._ranges.popleft()
            if now < until:
                self._ranges.append((first, last, until))
                return number_field(number, first, last)
        return number
