"""Changing the stores of a topic. Decisions only; `executor` does the I/O.

    journal ─► assign old and new stores ─► the new stores copy ─► assign the new stores ─► erase the journal
                                              │ one cannot
                                              └─► assign the old stores again ─► erase

The topic's record says which stores hold it. While it has both, each message is stored by either, so the number of
replicas is never too low. A coordinator may die between any two steps: its successor continues from the record.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearcast.coordinator.executor.steps import Erase, Finish, Journal

if TYPE_CHECKING:
    from nearcast.coordinator.moves import ReplicaMove

__all__ = ["AssignReplicas", "ReplicaStep", "WaitForCopy", "begin_replica_move", "resume_replica_move"]


@dataclass(frozen=True)
class AssignReplicas:
    """Write these stores to the topic's record. Answer: whether the topic is still there."""

    replicas: tuple[str, ...]


@dataclass(frozen=True)
class WaitForCopy:
    """Wait until these stores have the stored messages. Answer: why one has not, though an old one could be read."""

    fresh: tuple[str, ...]


ReplicaStep = Journal | AssignReplicas | WaitForCopy | Erase


def begin_replica_move(move: ReplicaMove) -> Generator[ReplicaStep, Any, Finish]:
    """The steps of a new move."""
    yield Journal()
    return (yield from _replace_stores(move))


def resume_replica_move(move: ReplicaMove, replicas: tuple[str, ...] | None) -> Generator[ReplicaStep, Any, Finish]:
    """The steps of a move that is in the journal. replicas: as the topic's record has them; none if it was removed."""
    if replicas is not None and set(replicas) in (set(move.before), set(move.both)):
        return (yield from _replace_stores(move))  # whether they have copied is checked next
    yield Erase()
    if replicas is None:
        return Finish("abandoned", "the topic was removed")
    if set(replicas) == set(move.after):
        return Finish("done")
    return Finish("abandoned", "its stores were changed by another coordinator")


def _replace_stores(move: ReplicaMove) -> Generator[ReplicaStep, Any, Finish]:
    failure = ""
    if is_there := (yield AssignReplicas(move.both)):
        failure = yield WaitForCopy(move.fresh)
        is_there = yield AssignReplicas(move.before if failure else move.after)
    yield Erase()
    if not is_there:
        return Finish("abandoned", "the topic was removed")
    return Finish("rolled back", failure) if failure else Finish("done")
