"""Changing the members of a topic: copy, then commit, then drop. Decisions only; the shell does what they say.

    journal ─► start the joining members ─► commit (epoch + 1) ─► the leaving members leave ─► erase the journal
                        │ one cannot
                        └─► commit the old members again (epoch + 2) ─► the joined ones leave ─► erase

The topic's record, changed by compare-and-set, is the only truth about who owns it. A coordinator may die between
any two steps: its successor reads the journal and the record, and goes on from where these two say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from nearcast.coordinator.executor.steps import Begin, Erase, Erased, Journal, Journalled
from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.control import TopicRecord

__all__ = [
    "Begin",
    "Commit",
    "Committed",
    "Conflict",
    "Erase",
    "Erased",
    "Event",
    "Failed",
    "Finish",
    "Instruction",
    "Journal",
    "Journalled",
    "Leave",
    "Left",
    "Resume",
    "Start",
    "Started",
    "TopicMove",
    "TopicMoveMachine",
]

Outcome = Literal["done", "rolled back", "abandoned"]


class TopicMove(msgspec.Struct, frozen=True, tag="topic"):
    """A topic's members before and after, as journalled. `epoch` is the record's when the move was planned.

    lost: members of sites that do not answer; nothing is asked of them, the epoch will tell them.
    """

    id: str
    topic: str
    epoch: int
    before: tuple[WorkerId, ...]
    after: tuple[WorkerId, ...]
    goal: str = ""
    reason: str = ""
    lost: tuple[WorkerId, ...] = ()

    @property
    def joining(self) -> tuple[WorkerId, ...]:
        return tuple(name for name in self.after if name not in self.before)

    @property
    def leaving(self) -> tuple[WorkerId, ...]:
        return tuple(name for name in self.before if name not in self.after)


# Events: what happened.


@dataclass(frozen=True)
class Resume:
    """A move found in the journal, with the topic's record as it is now."""

    record: TopicRecord | None


@dataclass(frozen=True)
class Started:
    """A joining member runs the topic."""

    member: WorkerId


@dataclass(frozen=True)
class Failed:
    """A joining member refused, or did not answer in time."""

    member: WorkerId
    reason: str


@dataclass(frozen=True)
class Committed:
    """The record was changed as asked."""


@dataclass(frozen=True)
class Conflict:
    """The record is not the one this move started from; this is what it is."""

    record: TopicRecord | None


@dataclass(frozen=True)
class Left:
    """A member left, or did not answer: it will leave by itself when it learns of the epoch."""

    member: WorkerId


# Instructions: what to do next.


@dataclass(frozen=True)
class Start:
    """Have a member run the topic, beginning with a copy of the spool of `source`, if any."""

    member: WorkerId
    source: WorkerId | None
    epoch: int


@dataclass(frozen=True)
class Commit:
    """Change the record, if its epoch is still `expected`."""

    expected: int
    epoch: int
    members: tuple[WorkerId, ...]


@dataclass(frozen=True)
class Leave:
    """Have a member leave; what is under way to it goes `towards` another, if any."""

    member: WorkerId
    towards: WorkerId | None
    epoch: int


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do."""

    outcome: Outcome
    reason: str = ""


Event = Begin | Resume | Journalled | Started | Failed | Committed | Conflict | Left | Erased
Instruction = Journal | Start | Commit | Leave | Erase | Finish


class TopicMoveMachine:
    """One move. Events in, instructions out; no I/O, no clock."""

    def __init__(self, move: TopicMove) -> None:
        self.move = move
        self._waiting: set[WorkerId] = set()
        self._failure = ""
        self._outcome: Outcome | None = None  # known once the record says so

    def handle(self, event: Event) -> list[Instruction]:
        """What to do now that this happened."""
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
            case Left(member):
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
        """Forward, or back: an epoch that leaves the joining members out makes them leave by themselves."""
        move = self.move
        if self._failure:
            return [Commit(move.epoch, move.epoch + 2, move.before)]
        return [Commit(move.epoch, move.epoch + 1, move.after)]

    def _settled_by(self, record: TopicRecord | None) -> list[Instruction]:
        """Go on from what the record says; nothing when it is still the one this move started from."""
        move = self.move
        if record is None or record.epoch > move.epoch:
            if record is not None and record.move == move.id:
                return self._conclude("done" if record.epoch == move.epoch + 1 else "rolled back")
            return self._conclude("abandoned", record)
        return []

    def _conclude(self, outcome: Outcome, record: TopicRecord | None = None) -> list[Instruction]:
        """The record is settled: those it leaves out leave."""
        move = self.move
        self._outcome = outcome
        if outcome == "done":
            self._failure = ""
            members, epoch, remaining = move.leaving, move.epoch + 1, move.after
        elif outcome == "rolled back":
            self._failure = self._failure or "a joining member did not start the topic"
            members, epoch, remaining = move.joining, move.epoch + 2, move.before
        else:
            self._failure = "the topic was changed by somebody else" if record else "the topic was removed"
            remaining = record.members if record else ()
            members = tuple(name for name in (*move.before, *move.after) if name not in remaining)
            epoch = record.epoch if record else move.epoch + 2
        leavers = [name for name in dict.fromkeys(members) if name not in move.lost]
        self._waiting = set(leavers)
        towards = next(iter(remaining), None)
        return [Leave(name, towards, epoch) for name in leavers] or [Erase()]
