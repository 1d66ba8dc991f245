"""Re-homing as the coordinator sees it, with every crash point."""

from __future__ import annotations

import pytest

from nearcast.coordinator.executor import client_move as cm
from nearcast.coordinator.executor.steps import Begin, Erase, Erased, Finish, Journal, Journalled, Resume
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

    def do(self, instruction: cm.Instruction) -> cm.Event:
        self.step()
        event: cm.Event
        match instruction:
            case Journal():
                self.journal[MOVE.id] = MOVE
                event = Journalled()
            case cm.TellClient():
                self.home = MOVE.after if self.answers else self.home
                event = cm.Moved() if self.answers else cm.Stayed("no answer")
            case cm.RecordHome():
                self.registry = MOVE.after
                event = cm.HomeRecorded()
            case Erase():
                self.journal.pop(MOVE.id, None)
                event = Erased()
            case Finish():
                raise AssertionError
        self.step()
        return event


def run(world: World, event: cm.Event) -> Finish:
    machine = cm.ClientMoveMachine()
    while True:
        instruction = machine.handle(event)
        if isinstance(instruction, Finish):
            return instruction
        event = world.do(instruction)


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("crash_at", range(-1, 12))
def test_registry_and_client_agree_whatever_happens(answers: bool, crash_at: int) -> None:
    world = World(answers, crash_at)
    try:
        run(world, Begin())
    except CrashError:
        if world.journal:
            run(world, Resume())
    assert not world.journal
    assert world.registry == world.home


def test_a_client_that_stays_says_why() -> None:
    assert run(World(False, -1), Begin()) == Finish("abandoned", "no answer")
    assert run(World(True, -1), Begin()) == Finish("done")
