"""Order per publisher: publications of a source are processed in the order of their numbers.

Numbers of a source have no gaps, so that a missing one is noticed at once. What comes behind it is held until it came,
until another member has marked it, or for a limited time. At most one member has a publication in flight, but while a
topic moves the next one may go to another member: a *copy* says that a publication is in another member's hands, its
*mark* that it is done. A member that joins gets the *positions* of the one that it copies the spool of: whose turn it
is of each source, and what is in flight. Two workers of one site get publications in turn while both are members, and
each waits for the other's mark: a copy of what comes behind one of ours says that our mark is waited for.
A client says which of its publications failed and are not sent again: nobody waits for those.

Where order is asked for, a worker that does not know how far a source was processed before it came holds all of it
until the stores have told (`learn`), a minute at most.

Decisions only. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nearcast.domain.number_ranges import NumberRanges

__all__ = ["SourceOrder"]

T = TypeVar("T")
_GAP_LIMIT = 4.0  # longer than the first store takes to redeliver what got lost
_IN_FLIGHT_LIMIT = 20.0  # for what another member is known to have; if that one dies, a store redelivers it
_ORDERED_LIMIT = 60.0
_SOURCES = 50_000
_HELD_LIMIT = 20_000


class _Sequence(Generic[T]):
    """One source's publications to one topic. next: the number whose turn it is; 0 when it is not known.

    here, elsewhere: the highest number that came here, and that another member took. pending: what other members have
    in flight, where order is asked for. since: from when the one whose turn it is is waited for, after a gap was given
    up.
    """

    __slots__ = ("done", "elsewhere", "held", "here", "key", "next", "pending", "since")

    def __init__(self, key: tuple[str, str], first: int) -> None:
        self.key, self.next = key, first
        self.here = self.elsewhere = 0
        self.since = 0.0
        self.done: set[int] = set()  # beyond `next`, by another member
        self.pending: set[int] = set()
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

    def arrive(self, topic: str, source: str, number: int, item: T, now: float) -> Iterable[T]:
        """A publication is here to be processed; what may be processed now, in order."""
        key = (topic, source)
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = self._add(key, self._first_turn(number))
        sequence.here = max(sequence.here, number)
        if number == sequence.next and not sequence.held:  # nearly always
            sequence.next = number + 1
            return (item, *self._advance(sequence)) if sequence.done else (item,)
        if number < sequence.next:  # it was not waited for any longer
            return (item,)
        self._hold(sequence, number, now, item)
        found = self._advance(sequence)
        return found if self.held < _HELD_LIMIT else [*found, *self.expire(now, everything=True)]

    def taken_elsewhere(self, topic: str, source: str, number: int) -> bool:
        """Another member has it in flight: what comes behind it waits for its mark.

        Whether that member waits for the mark of one that came here.
        """
        sequence = self._sequences.get((topic, source))
        if sequence is None:
            sequence = self._add((topic, source), self._first_turn(number))
        sequence.elsewhere = max(sequence.elsewhere, number)
        if self._ordered and number >= sequence.next and number not in sequence.done:
            sequence.pending.add(number)
            _bound(sequence.pending)
        return sequence.here >= number - 1 > 0

    def positions(self) -> Iterator[tuple[str, str, int]]:
        """Topic, source and the number whose turn it is (0: not known), those that became known last first."""
        for (topic, source), sequence in reversed(self._sequences.items()):
            yield topic, source, sequence.next

    def adopt(self, positions: Iterable[tuple[str, str, int, Iterable[int]]]) -> list[T]:
        """Topic, source, whose turn it is at the member that this one joins, and what that one has in flight.

        What may be processed now. Marks that came before this are taken now.
        """
        for topic, source, upto, numbers in positions:
            in_flight = set(numbers)
            if not upto:
                for number in in_flight:
                    self.taken_elsewhere(topic, source, number)
                continue
            first = min({upto, *in_flight})
            sequence = self._sequences.get((topic, source)) or self._add((topic, source), first)
            if 0 < sequence.next < first or sequence.here:  # it was handed over here meanwhile
                continue
            sequence.next = first
            sequence.pending = in_flight if self._ordered else set()
            sequence.done |= set(range(first, min(upto, first + _HELD_LIMIT))) - in_flight
            sequence.elsewhere = max(sequence.elsewhere, *in_flight, 0)
        early, self._early_marks = self._early_marks or [], None
        return [item for mark in early for item in self.done_elsewhere(*mark)]

    def done_elsewhere(self, topic: str, source: str, first: int, last: int) -> Iterable[T]:
        """Another member has processed these; what may be processed now."""
        if self._early_marks is not None:
            self._early_marks.append((topic, source, first, last))
            return ()
        sequence = self._sequences.get((topic, source))
        if sequence is None:
            sequence = self._add((topic, source), last + 1 if self._first_turn(first) else 0)
        if not sequence.next:
            numbers = range(max(first, last - _HELD_LIMIT), last + 1)
            sequence.done.update(numbers)
            sequence.pending.difference_update(numbers)
            _bound(sequence.done)
            return ()
        if last < sequence.next:
            return ()
        found: list[T] = []
        lost = last - sequence.next > _HELD_LIMIT and not sequence.held  # the mark of the one whose turn it is
        if first <= sequence.next or lost:
            sequence.next = last + 1
            sequence.done = {number for number in sequence.done if number > last}
            sequence.pending = {number for number in sequence.pending if number > last}
            here_as_well = sorted(number for number in sequence.held if number <= last)
            found += [self._release(sequence, number) for number in here_as_well]
        else:
            sequence.done.update(range(first, min(last, first + _HELD_LIMIT) + 1))
            sequence.pending = {number for number in sequence.pending if not first <= number <= last}
        return [*found, *self._advance(sequence)]

    def given_up(self, topic: str, source: str, first: int, last: int) -> Iterable[T]:
        """Their client does not send these again; what may be processed now. One that is in flight is waited for."""
        sequence = self._sequences.get((topic, source))
        if sequence is None or last < sequence.next:
            return ()
        if first <= sequence.next:  # however many they are
            in_flight = (number for number in (*sequence.held, *sequence.pending) if sequence.next <= number <= last)
            sequence.next = first = min(in_flight, default=last + 1)
        sequence.done.update(set(range(max(first, last - _HELD_LIMIT), last + 1)) - sequence.pending)
        _bound(sequence.done)
        return self._advance(sequence)

    def unknown(self, limit: int) -> list[tuple[str, str]]:
        """Topics and sources of which it is not known how far they were processed, and something waits for that."""
        if self._early_marks is not None:  # the member that it joins tells
            return []
        return [sequence.key for sequence in self._holding if not sequence.next][:limit]

    def learn(self, topic: str, source: str, marked: NumberRanges, unmarked: NumberRanges) -> list[T]:
        """What the stores have of a source, with marks and without; what may be processed now.

        What has no mark is waited for. So is one right behind the newest mark that no store has: it may be on its way.
        """
        sequence = self._sequences.get((topic, source))
        if sequence is None or sequence.next or not sequence.held:
            return []
        newest = max((last for _, last in marked), default=0)
        oldest = max(1, max(newest, *sequence.held) - _HELD_LIMIT)  # what is older is not waited for
        waiting = {*sequence.held, *sequence.pending, *(first for first, _ in unmarked if first >= oldest)}
        sequence.next = max(oldest, min(waiting | ({newest + 1} if newest else set())))
        found = [self._release(sequence, number) for number in sorted(sequence.held) if number < sequence.next]
        for first, last in marked:
            sequence.done.update(range(max(first, sequence.next), last + 1))
        sequence.done = {number for number in sequence.done if number >= sequence.next} - set(sequence.held)
        return [*found, *self._advance(sequence)]

    def expire(self, now: float, *, everything: bool = False) -> list[T]:
        """What has been held long enough, or all that is held, and what may follow it."""
        found: list[T] = []
        for sequence in list(self._holding):
            while sequence.held and (everything or self._deadline(sequence) <= now):
                sequence.pending = {number for number in sequence.pending if number > sequence.next}
                sequence.next = min(*sequence.held, *sequence.pending, sys.maxsize)
                sequence.since = now
                sequence.done = {number for number in sequence.done if number >= sequence.next}
                found += self._advance(sequence)
        return found

    def _deadline(self, sequence: _Sequence[T]) -> float:
        """Until when what is held waits."""
        came = next(iter(sequence.held.values()))[0]  # the one that came first
        if self._ordered:
            return max(
                came + _ORDERED_LIMIT, sequence.since + _IN_FLIGHT_LIMIT if sequence.next in sequence.pending else 0.0
            )
        return came + (_IN_FLIGHT_LIMIT if sequence.next <= sequence.elsewhere else _GAP_LIMIT)

    def _first_turn(self, number: int) -> int:
        """Whose turn it is when this is the first that is heard of a source; 0: older ones may be waiting."""
        return 0 if self._ordered and number > 1 else number

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
            elif sequence.next not in sequence.done:
                break
            sequence.done.discard(sequence.next)
            sequence.next += 1
        return found

    def _add(self, key: tuple[str, str], first: int) -> _Sequence[T]:
        sequence = self._sequences[key] = _Sequence(key, first)
        if len(self._sequences) > _SOURCES:
            for oldest in list(islice(self._sequences, 16)):
                if not self._sequences[oldest].held:
                    del self._sequences[oldest]
                    break
                self._sequences.move_to_end(oldest)
        return sequence


def _bound(numbers: set[int]) -> None:
    """Keep the newer ones of a set that became too large."""
    if len(numbers) > 2 * _HELD_LIMIT:
        numbers.difference_update(sorted(numbers)[:_HELD_LIMIT])
