"""Re-homing as the coordinator sees it, with every crash point."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from nearcast.coordinator.executor import client_move as cm
from nearcast.coordinator.executor.steps import Erase, Finish, Journal
from nearcast.coordinator.moves import ClientMove

MOVE = ClientMove("m1", "car", "a", "b")


class CrashError(Exception):
    """The coordinator is killed."""


class World:
    def __init__(self, answers: bool, crash_at: int) -> None:
        self.journal: dict[str, ClientMove] = {}
        self.registry, self.home = "a", "a"
        self.answers, self.crash_at, self.steps = answers, crash_at, 0

    def step(self) -> None:
        if self.steps == self.crash_at:
            self.crash_at = -1
            raise CrashError
        self.steps += 1

    def do(self, step: cm.ClientStep) -> str | None:
        self.step()
        answer = None
        match step:
            case Journal():
                self.journal[MOVE.id] = MOVE
            case cm.TellClient():
                self.home = MOVE.after if self.answers else self.home
                answer = "" if self.answers else "no answer"
            case cm.RecordHome():
                self.registry = MOVE.after
            case Erase():
                self.journal.pop(MOVE.id, None)
        self.step()
        return answer


def run(world: World, steps: Generator[cm.ClientStep, Any, Finish]) -> Finish:
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as ended:
            return ended.value
        answer = world.do(step)


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("crash_at", range(-1, 12))
def test_registry_and_client_agree_whatever_happens(answers: bool, crash_at: int) -> None:
    world = World(answers, crash_at)
    try:
        run(world, cm.begin_client_move())
    except CrashError:
        if world.journal:
            run(world, cm.resume_client_move())
    assert not world.journal
    assert world.registry == world.home


def test_a_client_that_stays_says_why() -> None:
    assert run(World(False, -1), cm.begin_client_move()) == Finish("abandoned", "no answer")
    assert run(World(True, -1), cm.begin_client_move()) == Finish("done")
