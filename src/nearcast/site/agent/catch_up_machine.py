"""Which publications of a durable topic nobody has processed yet, and when to send them to its owner again.

A store's agent reads publications and marks in the order the store has them. A publication without a mark for longer
than its settling time is redelivered until a mark comes: often as long as no worker answers, after growing pauses once
one has taken it, and after `max_attempts` it becomes a dead letter. One machine for a topic or a family of topics.

Decisions only: the shell feeds what it read, and does what `due` says. Times are seconds of the monotonic clock, so
that a clock that is set does not stop it; when a message was stored, or a mark was made, are seconds since 1970.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from nearcast.domain.number_ranges import NumberRanges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearcast.protocol.marks import Marks, TopicMarks

__all__ = ["CatchUpMachine", "Checkpoint", "DeadLetter", "Lag", "Redeliver", "SourceCheckpoint"]

WAITING_LIMIT = 50_000
"""Publications without a mark that one machine keeps track of; then reading pauses."""

# How many are redelivered and have no mark yet: more while all are processed soon, fewer while a processor is slow.
# Live publications wait behind them.
_LEAST_WINDOW, _LARGEST_WINDOW = 500, 4_000
_PROBES = 16  # the window while no worker answers, or workers have what this store sends
_PROBE_PAUSE = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0
_EPOCH_GRACE = 10.0  # members of a topic do not all learn of a new epoch at the same moment
_SOURCES = 50_000
_SAVED_SOURCES = 5_000
_EPOCH_SILENCE = 60.0  # an epoch without a mark for so long fences nobody: epochs may have started again
_EARLY_MARKS = 10_000  # of publications without a source that were marked before they were read here
_CLOCK_NOISE = 5.0  # between sites
# Ranges of marked numbers: a client that leaves out numbers makes one with each publication. Those that are forgotten
# are processed again, if they are read again.
_SOURCE_RANGES, _RANGES = 10_000, 200_000
_TOLD_RANGES = 2_000  # firsts and lasts of ranges that a worker is told of a source


class SourceCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    """A source's publications to a topic that are known to be processed, as ranges."""

    topic: str
    source: str
    marked: list[int]


class Checkpoint(msgspec.Struct, frozen=True):
    """Where to continue after a restart. created: of the stream, which tells it from another one of its name."""

    created: str = ""
    publications: int = 0
    marks: int = 0
    epoch: int = 0
    epoch_since: float = 0.0
    sources: list[SourceCheckpoint] = []


@dataclass(frozen=True)
class Redeliver:
    """Send the publication with this sequence to the topic's owner. attempt: which one it is, the first not counted."""

    sequence: int
    attempt: int


@dataclass(frozen=True)
class DeadLetter:
    """Give up the publication with this sequence."""

    sequence: int
    attempts: int


@dataclass(frozen=True)
class Lag:
    """Publications that nobody has processed within their settling time: how many, and the age of the oldest."""

    waiting: int = 0
    oldest: float = 0.0


@dataclass(slots=True)
class _Source:
    marked: NumberRanges = field(default_factory=NumberRanges)
    waiting: dict[int, int] = field(default_factory=dict)  # sequences by number


@dataclass(slots=True)
class _Unmarked:
    """A publication without a mark. other: its hash, when it is not known by source and number."""

    sequence: int
    since: float
    key: tuple[str, str]
    number: int
    other: int = 0
    taken: int = 0  # times that a worker took it
    asked: int = 0  # times that a worker answered
    due: float = 0.0  # when it is sent again; 0 before it was sent


class CatchUpMachine:
    """One stream of one store.

    settle: seconds after which a publication without a mark is sent again. rank: the store's among the replicas; each
    waits that many times as long, until it is clear that those before it do not redeliver.
    """

    def __init__(
        self, settle: float, max_attempts: int = 5, *, newest_first: bool = False, checkpoint: Checkpoint | None = None
    ) -> None:
        self.settle, self.max_attempts, self.newest_first = settle, max_attempts, newest_first
        self.rank = 1
        saved = checkpoint or Checkpoint()
        self.read_publications, self.read_marks = saved.publications, saved.marks  # the last sequences
        self.epoch, self._epoch_since = saved.epoch, saved.epoch_since
        self._epoch_last = saved.epoch_since
        self._sources: OrderedDict[tuple[str, str], _Source] = OrderedDict()
        for one in saved.sources:
            self._sources[one.topic, one.source] = _Source(NumberRanges(one.marked))
        self._ranges = sum(len(known.marked) for known in self._sources.values())
        self._waiting: dict[int, _Unmarked] = {}  # all, by sequence, in ascending order
        self._fresh: dict[int, _Unmarked] = {}  # those of them that were not sent yet, or are to be sent again
        self._sent: list[tuple[float, int]] = []  # a heap of (due, sequence); may hold what is marked by now
        self._outstanding, self._window = 0, _LEAST_WINDOW
        self._answering = False
        self._taken = self._known = 0  # answers since the last time that something was due
        self._lead_until = self._yield_until = 0.0
        self._others: dict[tuple[str, int], deque[int]] = {}  # sequences by topic and hash
        self._early: OrderedDict[tuple[str, int], deque[float]] = OrderedDict()  # when the marks were made

    # What was read

    def publication(
        self, sequence: int, since: float, topic: str, source: str, number: int, other: int = 0, stored: float = 0.0
    ) -> None:
        """A publication that has been in the store since a time.

        other: its hash, instead of source and number, when its id does not tell them; then a mark counts that was made
        after it was stored, though it was read before.
        """
        self.read_publications = max(self.read_publications, sequence)
        key = (topic, source)
        if other:
            if self._was_marked(topic, other, stored):
                return
            self._others.setdefault((topic, other), deque()).append(sequence)
        else:
            known = self._sources.get(key) or self._add_source(key)
            if number in known.marked or number in known.waiting:
                return
            known.waiting[number] = sequence
        self._waiting[sequence] = self._fresh[sequence] = _Unmarked(sequence, since, key, number, other)

    def marks(self, sequence: int, marks: Marks, when: float) -> bool:
        """A mark, and when it was made; whether it counts. One of an older epoch does not, after the newer began."""
        self.read_marks = max(self.read_marks, sequence)
        if marks.epoch > self.epoch or (marks.epoch < self.epoch and when > self._epoch_last + _EPOCH_SILENCE):
            self.epoch, self._epoch_since, self._epoch_last = marks.epoch, when, when
        elif marks.epoch < self.epoch and when > self._epoch_since + _EPOCH_GRACE:
            return False
        elif marks.epoch == self.epoch:
            self._epoch_last = max(self._epoch_last, when)
        for topic, said in marks.topics.items():
            self._mark_topic(topic, said, when)
        return True

    def _mark_topic(self, topic: str, said: TopicMarks, when: float) -> None:
        for source, flat in said.sources.items():
            key = (topic, source)
            known = self._sources.get(key) or self._add_source(key)
            self._sources.move_to_end(key)
            self._ranges -= len(known.marked)
            for first, last in zip(flat[::2], flat[1::2], strict=True):
                known.marked.add(first, last)
                for number in _within(known.waiting, first, last):
                    self._remove(known.waiting[number])
            known.marked.keep_newest(_SOURCE_RANGES)
            self._ranges += len(known.marked)
            while self._ranges > _RANGES and self._forget_source():
                pass
        for other in said.others:
            sequences = self._others.get((topic, other))
            if sequences:
                self._remove(sequences[0])
                continue
            self._early.setdefault((topic, other), deque(maxlen=100)).append(when)
            if len(self._early) > _EARLY_MARKS:
                self._early.popitem(last=False)

    def read_again(self, sequences: int) -> None:
        """The store was away, and may have lost its last messages and given their sequences to others."""
        self.read_publications = max(0, self.checkpoint().publications - sequences)
        self.read_marks = max(0, self.read_marks - sequences)
        for sequence in list(self._waiting):
            self._remove(sequence)

    def _was_marked(self, topic: str, other: int, stored: float) -> bool:
        """Whether a mark that was read before is of this publication: it was made after it."""
        early = self._early.get((topic, other))
        while early and early[0] < stored - _CLOCK_NOISE:
            early.popleft()
        if not early:
            self._early.pop((topic, other), None)
            return False
        early.popleft()
        return True

    def gone(self, sequence: int) -> None:
        """The store has removed a publication, by the topic's limits."""
        if sequence in self._waiting:
            self._remove(sequence)

    # What a worker answered

    def taken(self, sequence: int, now: float) -> None:
        """A worker has begun to process it."""
        entry = self._waiting.get(sequence)
        if entry is not None:
            entry.taken += 1
            self._taken += 1
            self._answered(entry, now)

    def known(self, sequence: int, now: float) -> None:
        """A worker is processing it already, or will mark it now."""
        entry = self._waiting.get(sequence)
        if entry is not None:
            self._known += 1
            self._answered(entry, now)

    def _answered(self, entry: _Unmarked, now: float) -> None:
        self._answering = True
        entry.asked += 1
        if entry.due:
            self._schedule(entry, now + min(_FIRST_PAUSE * 2 ** (entry.asked - 1), _LONGEST_PAUSE))

    # What to do

    def due(self, now: float, limit: int) -> list[Redeliver | DeadLetter]:
        """What to do now, at most so many."""
        unanswered = slow = False
        while self._sent and self._sent[0][0] <= now:
            due, sequence = heapq.heappop(self._sent)
            entry = self._waiting.get(sequence)
            if entry is None or entry.due != due:  # marked, or scheduled again
                continue
            self._outstanding -= 1
            entry.due = 0.0
            self._fresh[sequence] = entry
            unanswered |= not entry.asked
            slow |= entry.taken > 0
        if unanswered:
            self._answering = False
        if slow:
            self._window = max(_LEAST_WINDOW, self._window // 2)
        if self._taken > self._known:
            self._lead_until = now + self.settle
        elif self._known:  # another store is ahead of this one, or the worker has enough to do
            self._yield_until = now + self.settle * self.rank / 4
        self._taken = self._known = 0
        window = self._window if self._answering and now >= self._yield_until else _PROBES
        found: list[Redeliver | DeadLetter] = []
        for entry in list(self._ready(now, min(limit, window - self._outstanding))):
            if entry.taken >= self.max_attempts:
                self._remove(entry.sequence)
                found.append(DeadLetter(entry.sequence, entry.taken))
                continue
            del self._fresh[entry.sequence]
            self._outstanding += 1
            self._schedule(entry, now + _PROBE_PAUSE)
            found.append(Redeliver(entry.sequence, entry.taken + 1))
        return found

    def lag(self, now: float) -> Lag:
        """How far the topic's owner is behind, as this store sees it."""
        if not self._waiting:
            return Lag()
        overdue = sum(entry.since + self.settle * self.rank <= now for entry in self._waiting.values())
        oldest = min(entry.since for entry in self._waiting.values())
        return Lag(overdue, max(0.0, now - oldest)) if overdue else Lag()

    def progress(self, topic: str, source: str) -> tuple[list[int], list[int]]:
        """The numbers of a source that have marks, and those that wait for one, as ranges; the newest ones."""
        known = self._sources.get((topic, source))
        if known is None:
            return [], []
        unmarked = NumberRanges.of(known.waiting).flat()
        return known.marked.flat()[-_TOLD_RANGES:], unmarked[-_TOLD_RANGES:]

    @property
    def full(self) -> bool:
        """Whether no more publications may be read for now."""
        return len(self._waiting) >= WAITING_LIMIT

    @property
    def outstanding(self) -> int:
        """Publications that were redelivered and have no mark yet."""
        return self._outstanding

    @property
    def waiting(self) -> int:
        """Publications that were read and have no mark."""
        return len(self._waiting)

    def checkpoint(self, created: str = "") -> Checkpoint:
        """Where to continue after a restart: before the oldest publication without a mark."""
        oldest = min(self._waiting, default=self.read_publications + 1)
        newest = list(self._sources.items())[-_SAVED_SOURCES:]
        sources = [SourceCheckpoint(*key, known.marked.flat()) for key, known in newest if len(known.marked)]
        return Checkpoint(created, oldest - 1, self.read_marks, self.epoch, self._epoch_since, sources)

    def _ready(self, now: float, limit: int) -> Iterator[_Unmarked]:
        """Those that may be sent, in the order that the topic asks for."""
        found, settle = 0, self.settle if now < self._lead_until else self.settle * self.rank
        for entry in reversed(self._fresh.values()) if self.newest_first else self._fresh.values():
            if found >= limit:
                return
            if entry.since + settle <= now:
                found += 1
                yield entry

    def _schedule(self, entry: _Unmarked, due: float) -> None:
        entry.due = due
        heapq.heappush(self._sent, (due, entry.sequence))

    def _remove(self, sequence: int) -> None:
        entry = self._waiting.pop(sequence)
        if self._fresh.pop(sequence, None) is None:
            self._outstanding -= 1
            self._window = min(self._window + 1, _LARGEST_WINDOW)
            self._answering = True  # somebody works
        if entry.other:
            key = (entry.key[0], entry.other)
            self._others[key].remove(sequence)
            if not self._others[key]:
                del self._others[key]
        else:
            del self._sources[entry.key].waiting[entry.number]

    def _add_source(self, key: tuple[str, str]) -> _Source:
        added = self._sources[key] = _Source()
        if len(self._sources) > _SOURCES:
            self._forget_source()
        return added

    def _forget_source(self) -> bool:
        """Forget the one that was marked longest ago; one with something waiting is put last. Whether it did."""
        for key, known in list(islice(self._sources.items(), 16)):
            if not known.waiting:
                self._ranges -= len(known.marked)
                del self._sources[key]
                return True
            self._sources.move_to_end(key)
        return False


def _within(numbers: dict[int, int], first: int, last: int) -> list[int]:
    """The numbers that are in a range, by whichever way is shorter."""
    if last - first < len(numbers):
        return [number for number in range(first, last + 1) if number in numbers]
    return [number for number in numbers if first <= number <= last]
