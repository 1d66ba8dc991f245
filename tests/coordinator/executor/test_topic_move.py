"""Topic migration without a network: a small world with a store, sites and a queue group, and every way to fail."""

from __future__ import annotations

import itertools

import pytest

from nearcast.coordinator.executor import topic_move as tm
from nearcast.coordinator.executor.steps import Erase, Finish, Journal
from nearcast.coordinator.executor.topic_move import Begin, Erased, Journalled, Resume
from nearcast.coordinator.moves import TopicMove
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.control import TopicRecord

SPEC = TopicSpec("gps", ("a",))
A, B, C, D = (WorkerId(site, "w") for site in "abcd")
MOVE = TopicMove("m1", "gps", 4, (A,), (B,))


class CrashError(Exception):
    """The coordinator is killed."""


class World:
    """What a coordinator's instructions do. Sites keep running whatever happens to the coordinator.

    answers: what happens to the commands to a member: `ok`, `refused`, `silent` (nothing happens, no answer),
    `deaf` (it is done, but the answer is lost).
    """

    def __init__(self, move: TopicMove, answers: dict[str, str], crash_at: int = -1) -> None:
        self.record: TopicRecord | None = TopicRecord(SPEC, move.epoch, move.before)
        self.journal: dict[str, TopicMove] = {}
        self.running = dict.fromkeys(move.before, move.epoch)  # member -> epoch it was started with
        self.answers, self.crash_at, self.steps = answers, crash_at, 0
        self.ownerless = 0  # moments at which nobody was in the queue group

    def step(self) -> None:
        self.ownerless += not self.running
        if self.steps == self.crash_at:
            self.crash_at = -1
            raise CrashError
        self.steps += 1

    def do(self, move: TopicMove, instruction: tm.Instruction) -> tm.Event | None:
        self.step()
        event = self._do(move, instruction)
        self.step()
        return event

    def _do(self, move: TopicMove, instruction: tm.Instruction) -> tm.Event | None:
        match instruction:
            case Journal():
                self.journal[move.id] = move
                return Journalled()
            case tm.Start(member, source, epoch):
                return self._start(member, source, epoch)
            case tm.Commit(expected, epoch, members):
                if self.record is None or self.record.epoch != expected:
                    return tm.Conflict(self.record)
                self.record = TopicRecord(SPEC, epoch, members, move.id)
                return tm.Committed()
            case tm.Stop(member, _, epoch):
                if self.answers.get(member) != "silent" and self.running.get(member, epoch) <= epoch:
                    self.running.pop(member, None)
                return tm.Stopped(member)
            case Erase():
                self.journal.pop(move.id, None)
                return Erased()
            case Finish():
                return None
        raise AssertionError(instruction)

    def _start(self, member: WorkerId, source: WorkerId | None, epoch: int) -> tm.Event:
        answer = self.answers.get(member, "ok")
        if answer in ("ok", "deaf"):
            assert source is None or source in self.running or source == member
            self.running[member] = max(epoch, self.running.get(member, 0))
        return tm.Started(member) if answer == "ok" else tm.Failed(member, answer)

    def reconcile(self) -> None:
        """Every site learns of the record, as with the answer to its next report."""
        for member, epoch in list(self.running.items()):
            if self.record is None or (member not in self.record.members and epoch < self.record.epoch):
                del self.running[member]


def run(world: World, move: TopicMove, first: tm.Event) -> Finish:
    machine = tm.TopicMoveMachine(move)
    waiting: list[tm.Event] = [first]
    while waiting:
        for instruction in machine.handle(waiting.pop(0)):
            if isinstance(instruction, Finish):
                world.do(move, instruction)
                return instruction
            event = world.do(move, instruction)
            if event is not None:
                waiting.append(event)
    raise AssertionError("the machine stopped without finishing")


def run_with_crashes(world: World, move: TopicMove) -> None:
    """A coordinator, killed at the world's crash point, and its successor."""
    try:
        run(world, move, Begin())
    except CrashError:
        for journalled in list(world.journal.values()):
            run(world, journalled, Resume(world.record))


MOVES = [
    MOVE,
    TopicMove("m2", "gps", 1, (A,), (A, B)),
    TopicMove("m3", "gps", 1, (A, B), (B,)),
    TopicMove("m4", "gps", 7, (A, B), (C, D)),
    TopicMove("m5", "gps", 1, (), (B,)),
]


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.id)
def test_every_crash_point_and_every_failure_leaves_one_agreed_set_of_owners(move: TopicMove) -> None:
    members = list(dict.fromkeys((*move.before, *move.after)))
    seen = set()
    for answers in itertools.product(("ok", "refused", "silent", "deaf"), repeat=len(members)):
        for crash_at in range(-1, 30):
            world = World(move, dict(zip(members, answers, strict=True)), crash_at)
            run_with_crashes(world, move)
            assert not world.journal
            assert world.record is not None
            assert world.record.members in (move.before, move.after)
            # The record alone decides, once everybody has heard of it; nobody runs it who should not.
            world.reconcile()
            assert set(world.running) <= set(world.record.members)
            assert set(world.running) == set(world.record.members) or "refused" in answers or "silent" in answers
            if move.before:
                assert world.ownerless == 0
            seen.add(world.record.members)
    assert seen == {move.before, move.after}  # a coordinator that dies before the journal has it moves nothing


def test_a_move_starts_the_new_member_before_the_old_one_leaves() -> None:
    machine = tm.TopicMoveMachine(MOVE)
    assert machine.handle(Begin()) == [Journal()]
    assert machine.handle(Journalled()) == [tm.Start(B, A, 5)]
    assert machine.handle(tm.Started(B)) == [tm.Commit(4, 5, (B,))]
    assert machine.handle(tm.Committed()) == [tm.Stop(A, B, 5)]
    assert machine.handle(tm.Stopped(A)) == [Erase()]
    assert machine.handle(Erased()) == [Finish("done")]


def test_a_target_that_does_not_answer_is_rolled_back_with_an_epoch_that_keeps_it_out() -> None:
    machine = tm.TopicMoveMachine(MOVE)
    machine.handle(Begin())
    machine.handle(Journalled())
    assert machine.handle(tm.Failed(B, "no answer")) == [tm.Commit(4, 6, (A,))]
    assert machine.handle(tm.Committed()) == [tm.Stop(B, A, 6)]
    assert machine.handle(tm.Stopped(B)) == [Erase()]
    assert machine.handle(Erased()) == [Finish("rolled back", "b/w: no answer")]


def test_a_deposed_leaders_commit_is_taken_as_it_stands() -> None:
    # The successor could not reach b, but the deposed leader had committed the move a moment before.
    machine = tm.TopicMoveMachine(MOVE)
    machine.handle(Resume(TopicRecord(SPEC, 4, (A,))))
    machine.handle(tm.Failed(B, "no answer"))
    assert machine.handle(tm.Conflict(TopicRecord(SPEC, 5, (B,), "m1"))) == [tm.Stop(A, B, 5)]


def test_a_topic_that_somebody_else_changed_is_left_as_they_want_it() -> None:
    machine = tm.TopicMoveMachine(MOVE)
    machine.handle(Begin())
    machine.handle(Journalled())
    machine.handle(tm.Started(B))
    other = TopicRecord(SPEC, 9, (C,), "m7")
    assert machine.handle(tm.Conflict(other)) == [
        tm.Stop(A, C, 9),
        tm.Stop(B, C, 9),
    ]
    machine.handle(tm.Stopped(A))
    machine.handle(tm.Stopped(B))
    assert machine.handle(Erased()) == [Finish("abandoned", "the topic was changed by another coordinator")]


def test_a_removed_topic_stops_everywhere() -> None:
    machine = tm.TopicMoveMachine(MOVE)
    assert machine.handle(Resume(None)) == [
        tm.Stop(A, None, 6),
        tm.Stop(B, None, 6),
    ]


def test_late_answers_change_nothing() -> None:
    machine = tm.TopicMoveMachine(MOVE)
    machine.handle(Begin())
    machine.handle(Journalled())
    machine.handle(tm.Failed(B, "no answer"))
    assert machine.handle(tm.Started(B)) == []


def test_nothing_is_asked_of_a_lost_site() -> None:
    machine = tm.TopicMoveMachine(TopicMove("m1", "gps", 4, (A,), (B,), lost=(A,)))
    machine.handle(Begin())
    assert machine.handle(Journalled()) == [tm.Start(B, None, 5)]
    machine.handle(tm.Started(B))
    assert machine.handle(tm.Committed()) == [Erase()]
