"""Changing the members of a topic: copy, commit, drop. Decisions only; `executor` does the I/O.

    journal ─► start the joining members ─► commit (epoch + 1) ─► stop the leaving members ─► erase the journal
                        │ one cannot
                        └─► commit the old members (epoch + 2) ─► stop the joined members ─► erase

The topic's record, changed by compare-and-set, is the only source of truth about its owners. A coordinator may die
between any two steps: its successor reads the journal and the record, and continues from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.coordinator.executor.steps import Erase, Finish, Journal, Outcome

if TYPE_CHECKING:
    from nearcast.coordinator.moves import TopicMove
    from nearcast.domain.worker_id import WorkerId
    from nearcast.protocol.control import TopicRecord

__all__ = [
    "Begin", "Commit", "Committed", "Conflict", "Erased", "Event", "Failed", "Instruction", "Journalled", "Resume",
    "Start", "Started", "Stop", "Stopped", "TopicMoveMachine",
]  # fmt: skip


@dataclass(frozen=True)
class Begin:
    """Event: a new move."""


@dataclass(frozen=True)
class Resume:
    """Event: a move found in the journal, with the topic's record as it is now. None: the topic was removed."""

    record: TopicRecord | None


@dataclass(frozen=True)
class Journalled:
    """Event: the journal has the move."""


@dataclass(frozen=True)
class Started:
    """Event: a joining member runs the topic."""

    member: WorkerId


@dataclass(frozen=True)
class Failed:
    """Event: a joining member refused, or did not answer in time."""

    member: WorkerId
    reason: str


@dataclass(frozen=True)
class Committed:
    """Event: the record was changed."""


@dataclass(frozen=True)
class Conflict:
    """Event: the record is no longer the one this move started from. record: as it is now."""

    record: TopicRecord | None


@dataclass(frozen=True)
class Stopped:
    """Event: a member stopped, or did not answer: it stops when it sees the new epoch."""

    member: WorkerId


@dataclass(frozen=True)
class Erased:
    """Event: the move is no longer in the journal."""


@dataclass(frozen=True)
class Start:
    """Instruction: have a member run the topic. It first copies the spool of `source`, if any."""

    member: WorkerId
    source: WorkerId | None
    epoch: int


@dataclass(frozen=True)
class Commit:
    """Instruction: change the record if its epoch is still `expected`."""

    expected: int
    epoch: int
    members: tuple[WorkerId, ...]


@dataclass(frozen=True)
class Stop:
    """Instruction: have a member stop. It forwards messages that still arrive `towards` another member, if any."""

    member: WorkerId
    towards: WorkerId | None
    epoch: int


Event = Begin | Resume | Journalled | Started | Failed | Committed | Conflict | Stopped | Erased
Instruction = Journal | Start | Commit | Stop | Erase | Finish


class TopicMoveMachine:
    """One move. Events in, instructions out; no I/O, no clock."""

    def __init__(self, move: TopicMove) -> None:
        self.move = move
        self._waiting: set[WorkerId] = set()
        self._failure = ""
        self._outcome: Outcome | None = None  # known once the record is settled

    def handle(self, event: Event) -> list[Instruction]:
        """The next instructions; none while answers are outstanding."""
        match event:
            case Begin():
                return [Journal()]
            case Journalled():
                return self._start()
            case Resume(record):
                return self._settled_by(record) or self._start()
            case Started(member):
                return self._answered(member, "")
            case Failed(member, reason):
                return self._answered(member, f"{member}: {reason}")
            case Committed():
                return self._conclude("rolled back" if self._failure else "done")
            case Conflict(record):
                return self._settled_by(record) or self._conclude("abandoned", record)
            case Stopped(member):
                self._waiting.discard(member)
                return [] if self._waiting else [Erase()]
            case Erased():
                assert self._outcome is not None
                return [Finish(self._outcome, self._failure)]

    def _start(self) -> list[Instruction]:
        move = self.move
        self._waiting = set(move.joining)
        if not self._waiting:
            return self._commit()
        source = next((name for name in move.before if name not in move.lost), None)
        return [Start(member, source, move.epoch + 1) for member in move.joining]

    def _answered(self, member: WorkerId, failure: str) -> list[Instruction]:
        if member not in self._waiting:
            return []
        self._waiting.discard(member)
        self._failure = self._failure or failure
        return [] if self._waiting else self._commit()

    def _commit(self) -> list[Instruction]:
        """Forward, or back: joining members stop by themselves when they see an epoch without them."""
        move = self.move
        if self._failure:
            return [Commit(move.epoch, move.epoch + 2, move.before)]
        return [Commit(move.epoch, move.epoch + 1, move.after)]

    def _settled_by(self, record: TopicRecord | None) -> list[Instruction]:
        """Continue from the record; empty when it is still the one this move started from."""
        move = self.move
        if record is None or record.epoch > move.epoch:
            if record is not None and record.move == move.id:
                return self._conclude("done" if record.epoch == move.epoch + 1 else "rolled back")
            return self._conclude("abandoned", record)
        return []

    def _conclude(self, outcome: Outcome, record: TopicRecord | None = None) -> list[Instruction]:
        """The record is settled: members that are not in it stop."""
        move = self.move
        self._outcome = outcome
        if outcome == "done":
            self._failure = ""
            members, epoch, remaining = move.leaving, move.epoch + 1, move.after
        elif outcome == "rolled back":
            self._failure = self._failure or "a joining member did not start the topic"
            members, epoch, remaining = move.joining, move.epoch + 2, move.before
        else:
            self._failure = "the topic was changed by another coordinator" if record else "the topic was removed"
            remaining = record.members if record else ()
            members = tuple(name for name in (*move.before, *move.after) if name not in remaining)
            epoch = record.epoch if record else move.epoch + 2
        stopping = [name for name in dict.fromkeys(members) if name not in move.lost]
        self._waiting = set(stopping)
        towards = next(iter(remaining), None)
        return [Stop(name, towards, epoch) for name in stopping] or [Erase()]
