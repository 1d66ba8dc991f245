"""Changing the stores that keep a topic: name both, wait for the past, let go of the old ones. Decisions only.

    journal ─► name both ─► the new stores copy the past ─► name the new ones ─► erase the journal
                                    │ one cannot
                                    └─► name the old ones again ─► erase

The topic's record says which stores keep it. While it names both, a message is kept by either, so there is no moment at
which one too few has it. A coordinator may die between any two steps: its successor goes on from what the record says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from nearcast.coordinator.executor.steps import Begin, Erase, Erased, Journal, Journalled

__all__ = [
    "Begin",
    "Copied",
    "Copy",
    "Erase",
    "Erased",
    "Event",
    "Finish",
    "Gone",
    "Instruction",
    "Journal",
    "Journalled",
    "Name",
    "Named",
    "NotCopied",
    "ReplicaMove",
    "ReplicaMoveMachine",
    "Resume",
]

Outcome = Literal["done", "rolled back", "abandoned"]


class ReplicaMove(msgspec.Struct, frozen=True, tag="replicas"):
    """The stores of a topic before and after, as journalled."""

    id: str
    topic: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    goal: str = ""
    reason: str = ""

    @property
    def fresh(self) -> tuple[str, ...]:
        """The stores that do not keep it yet."""
        return tuple(site for site in self.after if site not in self.before)

    @property
    def both(self) -> tuple[str, ...]:
        """Old and new stores."""
        return (*self.before, *self.fresh)


@dataclass(frozen=True)
class Resume:
    """A move found in the journal, with the stores that the topic's record names now; none when the topic is gone."""

    replicas: tuple[str, ...] | None


@dataclass(frozen=True)
class Named:
    """The record names the stores as asked."""


@dataclass(frozen=True)
class Copied:
    """All new stores have the past."""


@dataclass(frozen=True)
class NotCopied:
    """A new store did not get the past in time, though there was one to copy from."""

    reason: str


@dataclass(frozen=True)
class Gone:
    """The topic was removed."""


@dataclass(frozen=True)
class Name:
    """Have the record name these stores."""

    replicas: tuple[str, ...]


@dataclass(frozen=True)
class Copy:
    """Wait until these stores have the past."""

    fresh: tuple[str, ...]


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do."""

    outcome: Outcome
    reason: str = ""


Event = Begin | Resume | Journalled | Named | Copied | NotCopied | Gone | Erased
Instruction = Journal | Name | Copy | Erase | Finish


class ReplicaMoveMachine:
    """One move. Events in, instructions out; no I/O, no clock."""

    def __init__(self, move: ReplicaMove) -> None:
        self.move = move
        self._outcome: Outcome | None = None
        self._reason = ""

    def handle(self, event: Event) -> Instruction:
        """What to do now that this happened."""
        match event:
            case Begin():
                return Journal()
            case Journalled():
                return Name(self.move.both)
            case Resume(replicas):
                return self._resume(replicas)
            case Named():
                return Erase() if self._outcome is not None else Copy(self.move.fresh)
            case Copied():
                self._outcome = "done"
                return Name(self.move.after)
            case NotCopied(reason):
                self._outcome, self._reason = "rolled back", reason
                return Name(self.move.before)
            case Gone():
                self._outcome, self._reason = "abandoned", "the topic was removed"
                return Erase()
            case Erased():
                assert self._outcome is not None
                return Finish(self._outcome, self._reason)

    def _resume(self, replicas: tuple[str, ...] | None) -> Instruction:
        move = self.move
        if replicas is None:
            return self.handle(Gone())
        if set(replicas) in (set(move.before), set(move.both)):  # copied already or not: that is soon seen
            return Name(move.both)
        if set(replicas) == set(move.after):
            self._outcome = "done"
            return Erase()
        self._outcome, self._reason = "abandoned", "its stores were changed by somebody else"
        return Erase()
