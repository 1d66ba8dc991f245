"""Changing the stores of a topic. Decisions only; `executor` does the I/O.

    journal ─► assign old and new stores ─► the new stores copy ─► assign the new stores ─► erase the journal
                                              │ one cannot
                                              └─► assign the old stores again ─► erase

The topic's record says which stores hold it. While it has both, each message is stored by either, so the number of
replicas is never too low. A coordinator may die between any two steps: its successor continues from the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.coordinator.executor.steps import Begin, Erase, Erased, Finish, Journal, Journalled, Outcome, Resume

if TYPE_CHECKING:
    from nearcast.coordinator.moves import ReplicaMove

__all__ = [
    "AssignReplicas", "Copied", "Event", "Instruction", "NotCopied", "ReplicaMoveMachine", "ReplicasAssigned",
    "TopicRemoved", "WaitForCopy",
]  # fmt: skip


@dataclass(frozen=True)
class ReplicasAssigned:
    """Event: the record has the stores."""


@dataclass(frozen=True)
class Copied:
    """Event: all new stores have the stored messages."""


@dataclass(frozen=True)
class NotCopied:
    """Event: a new store did not copy in time, though an old one could be read."""

    reason: str


@dataclass(frozen=True)
class TopicRemoved:
    """Event: the topic was removed."""


@dataclass(frozen=True)
class AssignReplicas:
    """Instruction: write these stores to the topic's record."""

    replicas: tuple[str, ...]


@dataclass(frozen=True)
class WaitForCopy:
    """Instruction: wait until these stores have the stored messages."""

    fresh: tuple[str, ...]


Event = Begin | Resume | Journalled | ReplicasAssigned | Copied | NotCopied | TopicRemoved | Erased
Instruction = Journal | AssignReplicas | WaitForCopy | Erase | Finish


class ReplicaMoveMachine:
    """One move. Events in, instructions out; no I/O, no clock."""

    def __init__(self, move: ReplicaMove) -> None:
        self.move = move
        self._outcome: Outcome | None = None
        self._reason = ""

    def handle(self, event: Event) -> Instruction:
        """The next instruction."""
        match event:
            case Begin():
                return Journal()
            case Journalled():
                return AssignReplicas(self.move.both)
            case Resume(record):
                return self._resume(None if record is None else record.spec.replicas)
            case ReplicasAssigned():
                return Erase() if self._outcome is not None else WaitForCopy(self.move.fresh)
            case Copied():
                self._outcome = "done"
                return AssignReplicas(self.move.after)
            case NotCopied(reason):
                self._outcome, self._reason = "rolled back", reason
                return AssignReplicas(self.move.before)
            case TopicRemoved():
                self._outcome, self._reason = "abandoned", "the topic was removed"
                return Erase()
            case Erased():
                assert self._outcome is not None
                return Finish(self._outcome, self._reason)

    def _resume(self, replicas: tuple[str, ...] | None) -> Instruction:
        move = self.move
        if replicas is None:
            return self.handle(TopicRemoved())
        if set(replicas) in (set(move.before), set(move.both)):  # whether they have copied is checked next
            return AssignReplicas(move.both)
        if set(replicas) == set(move.after):
            self._outcome = "done"
            return Erase()
        self._outcome, self._reason = "abandoned", "its stores were changed by another coordinator"
        return Erase()
