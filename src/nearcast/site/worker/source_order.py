"""Order per publisher: publications of a source are processed in the order of their numbers.

Numbers of a source have no gaps, so that a missing one is noticed at once. What comes behind it is held until it came,
until another member has marked it, or for a limited time. At most one member has a publication in hand, but while a
topic moves the next one may go to another member: a *copy* says that a publication is in another member's hands, its
*mark* that it is done.

Decisions only. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["SourceOrder"]

T = TypeVar("T")
_GAP_LIMIT = 4.0  # longer than the first store takes to redeliver what got lost
_ORDERED_LIMIT = 60.0
_UNKNOWN_LIMIT = 6.0  # for older ones of a source that nothing is known of, if order is asked for
_SOURCES = 50_000
_HELD_LIMIT = 20_000


class _Sequence(Generic[T]):
    """One source's publications to one topic. next: the number whose turn it is; 0 when it is not known."""

    __slots__ = ("done", "held", "next")

    def __init__(self, first: int) -> None:
        self.next = first
        self.done: set[int] = set()  # beyond `next`, by another member
        self.held: dict[int, tuple[float, T]] = {}  # until when, by number


class SourceOrder(Generic[T]):
    """The publications of a topic or family at one worker. ordered: wait as long as it takes, within a minute."""

    def __init__(self, *, ordered: bool = False) -> None:
        self._ordered = ordered
        self._limit = _ORDERED_LIMIT if ordered else _GAP_LIMIT
        self._sequences: OrderedDict[tuple[str, str], _Sequence[T]] = OrderedDict()
        self._holding: dict[_Sequence[T], None] = {}
        self.held = 0

    def arrive(self, topic: str, source: str, number: int, item: T, now: float, *, late: bool = False) -> Iterable[T]:
        """A publication is here to be processed; what may be processed now, in order. late: a store gave it."""
        key = (topic, source)
        sequence = self._sequences.get(key)
        if sequence is None:
            unknown = self._ordered and number > 1
            sequence = self._add(key, 0 if unknown else number)
        if number == sequence.next and not sequence.held:  # nearly always
            sequence.next = number + 1
            return (item, *self._advance(sequence)) if sequence.done else (item,)
        if not sequence.next:
            return self._arrive_unknown(sequence, number, item, now, late=late)
        if number < sequence.next:  # it was not waited for any longer
            return (item,)
        self._hold(sequence, number, now + self._limit, item)
        found = self._advance(sequence)
        return found if self.held < _HELD_LIMIT else [*found, *self.expire(float("inf"))]

    def taken_elsewhere(self, topic: str, source: str, number: int) -> None:
        """Another member has it in hand: what comes behind it waits for its mark."""
        if (topic, source) not in self._sequences:
            self._add((topic, source), number)

    def done_elsewhere(self, topic: str, source: str, first: int, last: int) -> Iterable[T]:
        """Another member has processed these; what may be processed now."""
        sequence = self._sequences.get((topic, source))
        if sequence is None:
            self._add((topic, source), last + 1)
            return ()
        if not sequence.next or last < sequence.next:
            return ()
        found: list[T] = []
        if first <= sequence.next:
            sequence.next = last + 1
            sequence.done = {number for number in sequence.done if number > last}
            here_as_well = sorted(number for number in sequence.held if number <= last)
            found += [self._release(sequence, number) for number in here_as_well]
        else:
            sequence.done.update(range(first, min(last, first + _HELD_LIMIT) + 1))
        return [*found, *self._advance(sequence)]

    def expire(self, now: float) -> list[T]:
        """What has been held long enough, and what may follow it."""
        found: list[T] = []
        for sequence in list(self._holding):
            while sequence.held and next(iter(sequence.held.values()))[0] <= now:  # the one that came first
                sequence.next = min(sequence.held)
                found += self._advance(sequence)
        return found

    def _arrive_unknown(self, sequence: _Sequence[T], number: int, item: T, now: float, *, late: bool) -> Iterable[T]:
        """The first publications of a source, at a worker that does not know which were processed before it came."""
        if late and (not sequence.held or number < min(sequence.held)):
            for held, (_, other) in sequence.held.items():  # there may be more of them
                sequence.held[held] = (now + _UNKNOWN_LIMIT, other)
            return (item,)
        self._hold(sequence, number, now + _UNKNOWN_LIMIT, item)
        return ()

    def _hold(self, sequence: _Sequence[T], number: int, limit: float, item: T) -> None:
        if number not in sequence.held:
            sequence.held[number] = (limit, item)
            self._holding[sequence] = None
            self.held += 1

    def _release(self, sequence: _Sequence[T], number: int) -> T:
        item = sequence.held.pop(number)[1]
        self.held -= 1
        if not sequence.held:
            del self._holding[sequence]
        return item

    def _advance(self, sequence: _Sequence[T]) -> list[T]:
        """Those whose turn it is."""
        found: list[T] = []
        while True:
            if sequence.next in sequence.held:
                found.append(self._release(sequence, sequence.next))
            elif sequence.next in sequence.done:
                sequence.done.discard(sequence.next)
            else:
                break
            sequence.next += 1
        return found

    def _add(self, key: tuple[str, str], first: int) -> _Sequence[T]:
        sequence = self._sequences[key] = _Sequence(first)
        if len(self._sequences) > _SOURCES:
            for oldest in list(self._sequences)[:16]:
                if not self._sequences[oldest].held:
                    del self._sequences[oldest]
                    break
                self._sequences.move_to_end(oldest)
        return sequence
