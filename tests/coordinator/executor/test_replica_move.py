"""Moving replicas, with every crash point: never one store too few, and a past that is nowhere but in a lost store."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from nearcast.coordinator.executor import replica_move as rm
from nearcast.coordinator.executor.steps import Erase, Finish, Journal
from nearcast.coordinator.moves import ReplicaMove

MOVES = [
    ReplicaMove("m1", "log", ("a",), ("b",)),
    ReplicaMove("m1", "log", ("a", "b"), ("b", "c")),
    ReplicaMove("m1", "log", ("a", "b"), ("b",)),
    ReplicaMove("m1", "log", ("a",), ("a", "b")),
]


class CrashError(Exception):
    """The coordinator is killed."""


class World:
    """A record, a journal, and stores of which the first has the past."""

    def __init__(self, move: ReplicaMove, copies: bool, crash_at: int) -> None:
        self.move, self.copies, self.crash_at, self.steps = move, copies, crash_at, 0
        self.journal: set[str] = set()
        self.record: tuple[str, ...] | None = move.before
        self.has_past = set(move.before)

    def step(self) -> None:
        if self.steps == self.crash_at:
            self.crash_at = -1
            raise CrashError
        self.steps += 1

    def do(self, step: rm.ReplicaStep) -> bool | str | None:
        self.step()
        answer: bool | str | None = None
        match step:
            case Journal():
                self.journal.add(self.move.id)
            case rm.AssignReplicas(replicas):
                assert self.move.id in self.journal, "journalled first"
                assert self.has_past & set(replicas), "some store that is named has the past"
                self.record = replicas if self.record is not None else None
                answer = self.record is not None
            case rm.WaitForCopy(fresh):
                if self.copies:
                    self.has_past |= set(fresh)
                answer = "" if self.copies or not fresh else "too slow"
            case Erase():
                self.journal.discard(self.move.id)
        self.step()
        return answer

    def begin(self) -> Finish:
        return self._run(rm.begin_replica_move(self.move))

    def resume(self) -> Finish:
        return self._run(rm.resume_replica_move(self.move, self.record))

    def _run(self, steps: Generator[rm.ReplicaStep, Any, Finish]) -> Finish:
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as ended:
                return ended.value
            answer = self.do(step)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("move", MOVES, ids=lambda move: f"{''.join(move.before)}-{''.join(move.after)}")
@pytest.mark.parametrize("crash_at", range(-1, 12))
def test_whenever_the_coordinator_dies_the_stores_are_the_old_or_the_new_ones(
    move: ReplicaMove, copies: bool, crash_at: int
) -> None:
    world = World(move, copies, crash_at)
    try:
        world.begin()
    except CrashError:
        if world.journal:
            world.resume()
    assert not world.journal
    assert world.record is not None
    done = copies or not move.fresh
    untouched = 0 <= crash_at < 2 and set(world.record) == set(move.before)  # it died before the journal had it
    assert set(world.record) == set(move.after if done else move.before) or untouched
    assert set(world.record) <= world.has_past


def test_a_topic_that_goes_or_is_changed_meanwhile_is_left_alone() -> None:
    world = World(MOVES[0], True, -1)
    world.record = None
    world.has_past = {"a", "b"}
    assert world.begin() == Finish("abandoned", "the topic was removed")
    assert world.resume() == Finish("abandoned", "the topic was removed")
    world.record = ("z",)
    assert world.resume() == Finish("abandoned", "its stores were changed by another coordinator")
    assert world.record == ("z",)
