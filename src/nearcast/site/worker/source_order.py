"""Order per publisher: publications of a source are processed in the order of their numbers.

Numbers of a source have no gaps, so that a missing one is noticed at once. What comes behind it is held until it came,
until another member has marked it, or for a limited time. At most one member has a publication in hand, but while a
topic moves the next one may go to another member: a *copy* says that a publication is in another member's hands, its
*mark* that it is done. A member that joins gets the *positions* of the one that it copies the spool of: whose turn it
is of each source, and what is in hand. Two workers of one site get publications in turn while both are members, and
each waits for the other's mark: a copy of what comes behind one of ours says that our mark is waited for.

Decisions only. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["SourceOrder"]

T = TypeVar("T")
_GAP_LIMIT = 4.0  # longer than the first store takes to redeliver what got lost
_IN_HAND_LIMIT = 20.0  # for what another member is known to have; if that one dies, a store redelivers it
_ORDERED_LIMIT = 60.0
_UNKNOWN_LIMIT = 6.0  # for older ones of a source that nothing is known of, if order is asked for
_SOURCES = 50_000
_HELD_LIMIT = 20_000


class _Sequence(Generic[T]):
    """One source's publications to one topic. next: the number whose turn it is; 0 when it is not known.

    here, elsewhere: the highest number that came here, and that another member took. first, since: while `next` is
    not known, when the first one came, and from when older ones are waited for.
    """

    __slots__ = ("done", "elsewhere", "first", "held", "here", "next", "since")

    def __init__(self, first: int) -> None:
        self.next = first
        self.here = self.elsewhere = 0
        self.first = self.since = 0.0
        self.done: set[int] = set()  # beyond `next`, by another member
        self.held: dict[int, tuple[float, T]] = {}  # since when, by number


class SourceOrder(Generic[T]):
    """The publications of a topic or family at one worker.

    ordered: wait as long as it takes, within a minute. adopting: it joins, and `adopt` is called once.
    """

    def __init__(self, *, ordered: bool = False, adopting: bool = False) -> None:
        self._ordered = ordered
        self._early_marks: list[tuple[str, str, int, int]] | None = [] if adopting else None
        self._sequences: OrderedDict[tuple[str, str], _Sequence[T]] = OrderedDict()
        self._holding: dict[_Sequence[T], None] = {}
        self.held = 0

    def is_next(self, topic: str, source: str, number: int) -> bool:
        """Whether a publication that is here may be processed, and nothing else because of it; else `arrive` says."""
        sequence = self._sequences.get((topic, source))
        if sequence is None or number != sequence.next or sequence.held or sequence.done:
            return False
        sequence.here = number
        sequence.next = number + 1
        return True

    def has_passed(self, topic: str, source: str, number: int) -> bool:
        """Whether newer ones of its source were processed, as far as is known here."""
        sequence = self._sequences.get((topic, source))
        return sequence is not None and number < sequence.next

    def arrive(self, topic: str, source: str, number: int, item: T, now: float, *, late: bool = False) -> Iterable[T]:
        """A publication is here to be processed; what may be processed now, in order. late: a store gave it."""
        key = (topic, source)
        sequence = self._sequences.get(key)
        if sequence is None:
            unknown = self._ordered and number > 1
            sequence = self._add(key, 0 if unknown else number)
        sequence.here = number
        if number == sequence.next and not sequence.held:  # nearly always
            sequence.next = number + 1
            return (item, *self._advance(sequence)) if sequence.done else (item,)
        if not sequence.next:
            return self._arrive_unknown(sequence, number, item, now, late=late)
        if number < sequence.next:  # it was not waited for any longer
            return (item,)
        self._hold(sequence, number, now, item)
        found = self._advance(sequence)
        return found if self.held < _HELD_LIMIT else [*found, *self.expire(float("inf"))]

    def taken_elsewhere(self, topic: str, source: str, number: int) -> bool:
        """Another member has it in hand: what comes behind it waits for its mark.

        Whether that member waits for the mark of one that came here.
        """
        sequence = self._sequences.get((topic, source))
        if sequence is None:
            sequence = self._add((topic, source), number)
        sequence.elsewhere = max(sequence.elsewhere, number)
        return sequence.here >= number - 1 > 0

    def positions(self) -> Iterator[tuple[str, str, int]]:
        """Topic, source and the number whose turn it is, those that became known last first."""
        for (topic, source), sequence in reversed(self._sequences.items()):
            if sequence.next:
                yield topic, source, sequence.next

    def adopt(self, positions: Iterable[tuple[str, str, int, Iterable[int]]]) -> list[T]:
        """Topic, source, whose turn it is at the member that this one joins, and what that one has in hand.

        What may be processed now. Marks that came before this are taken now.
        """
        for topic, source, upto, numbers in positions:
            in_hand = set(numbers)
            first = min({upto, *in_hand})
            sequence = self._sequences.get((topic, source)) or self._add((topic, source), first)
            if 0 < sequence.next < first or sequence.here:  # it was handed over here meanwhile
                continue
            sequence.next = first
            sequence.done |= set(range(first, min(upto, first + _HELD_LIMIT))) - in_hand
            sequence.elsewhere = max(sequence.elsewhere, *in_hand, 0)
        early, self._early_marks = self._early_marks or [], None
        return [item for mark in early for item in self.done_elsewhere(*mark)]

    def done_elsewhere(self, topic: str, source: str, first: int, last: int) -> Iterable[T]:
        """Another member has processed these; what may be processed now."""
        if self._early_marks is not None:
            self._early_marks.append((topic, source, first, last))
            return ()
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
            while sequence.held and self._deadline(sequence) <= now:
                sequence.next = min(sequence.held)
                found += self._advance(sequence)
        return found

    def _deadline(self, sequence: _Sequence[T]) -> float:
        """Until when what is held waits."""
        if not sequence.next:
            return sequence.since + _UNKNOWN_LIMIT
        came = next(iter(sequence.held.values()))[0]  # the one that came first
        if self._ordered:
            return came + _ORDERED_LIMIT
        return came + (_IN_HAND_LIMIT if sequence.next <= sequence.elsewhere else _GAP_LIMIT)

    def _arrive_unknown(self, sequence: _Sequence[T], number: int, item: T, now: float, *, late: bool) -> Iterable[T]:
        """The first publications of a source, at a worker that does not know which were processed before it came.

        Stores give what they have in the order they got it, each its part: all wait until no more come.
        """
        if not sequence.held:
            sequence.first = sequence.since = now
        if late:  # there may be more of them
            sequence.since = min(now, sequence.first + _ORDERED_LIMIT - _UNKNOWN_LIMIT)
        self._hold(sequence, number, now, item)
        return () if self.held < _HELD_LIMIT else self.expire(float("inf"))

    def _hold(self, sequence: _Sequence[T], number: int, now: float, item: T) -> None:
        if number not in sequence.held:
            sequence.held[number] = (now, item)
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
