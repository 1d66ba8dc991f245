"""Sets of whole numbers that are mostly consecutive, as ranges."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["NumberRanges"]


class NumberRanges:
    """Disjoint ranges in ascending order, none of them touching the next. Adding behind the last one is O(1)."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, flat: Sequence[int] = ()) -> None:
        """flat: first and last of each range, in any order, as `flat()` gives them."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in zip(flat[::2], flat[1::2], strict=True):
            self.add(first, last)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> NumberRanges:
        """The ranges of these numbers."""
        ranges, expected = cls(), None
        firsts, lasts = ranges._firsts, ranges._lasts
        distinct = sorted(set(numbers))
        if distinct and distinct[-1] - distinct[0] == len(distinct) - 1:  # one range, nearly always
            firsts.append(distinct[0])
            lasts.append(distinct[-1])
            return ranges
        for number in distinct:
            if number != expected:
                if expected is not None:
                    lasts.append(expected - 1)
                firsts.append(number)
            expected = number + 1
        if expected is not None:
            lasts.append(expected - 1)
        return ranges

    def add(self, first: int, last: int) -> None:
        """Add the numbers from first to last."""
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            return
        if first >= firsts[-1]:
            lasts[-1] = max(last, lasts[-1])
            return
        low = bisect_right(lasts, first - 2)  # the first range that touches or overlaps, or lies behind
        high = bisect_right(firsts, last + 1)  # behind the last one that does
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high], lasts[low:high] = [first], [last]

    def keep_newest(self, count: int) -> None:
        """Forget the lowest ranges when there are more than twice as many."""
        if len(self._firsts) > 2 * count:
            del self._firsts[:-count], self._lasts[:-count]

    def without(self, other: NumberRanges) -> NumberRanges:
        """The numbers that are not in the other ranges."""
        found = NumberRanges()
        for first, last in self:
            at = bisect_right(other._lasts, first - 1)
            while at < len(other) and other._firsts[at] <= last:
                if first < other._firsts[at]:
                    found.add(first, other._firsts[at] - 1)
                first = other._lasts[at] + 1
                at += 1
            if first <= last:
                found.add(first, last)
        return found

    def flat(self) -> list[int]:
        """First and last of each range, one after the other."""
        return [number for pair in zip(self._firsts, self._lasts, strict=True) for number in pair]

    def __contains__(self, number: int) -> bool:
        lasts = self._lasts
        if not lasts or number > lasts[-1]:
            return False
        if number >= self._firsts[-1]:
            return True
        return self._firsts[at] <= number if (at := bisect_right(lasts, number - 1)) < len(lasts) else False

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)
