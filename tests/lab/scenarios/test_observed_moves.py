"""Moves as a coordinator tells them, or as they show when it does not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nearcast.lab.scenarios import observed_moves as moves
from nearcast.lab.scenarios.observed_moves import MoveObserver
from nearcast.nats.connection import Connection
from nearcast.nats.coordinator_rpc import CoordinatorError

TOLD = {
    "time": 100.5, "kind": "topic", "subject": "swarm.0", "from": ["zone0/worker-0"], "to": ["zone1/worker-0"],
    "goal": "topic latency", "reason": "late", "outcome": "done", "seconds": 0.4,
}  # fmt: skip


class Answers:
    """A coordinator's answers to `ls`, by noun; a noun without one is not served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        monkeypatch.setattr(moves, "call_coordinator", self._answer)

    async def _answer(self, connection: Connection, noun: str, verb: str, *rest: Any) -> list[dict[str, Any]]:
        assert verb == "ls"
        if noun not in self.rows:
            raise CoordinatorError("no coordinator answers")
        return self.rows[noun]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(monkeypatch)


def observer() -> MoveObserver:
    return MoveObserver(cast("Connection", None))


async def test_what_the_coordinator_tells_is_counted_once(answers: Answers) -> None:
    answers.rows["move"] = [TOLD, TOLD | {"time": 101.0, "outcome": "rolled back"}]
    one = observer()
    await one.read()
    await one.read()
    (move,) = one.moves
    assert (move.at, move.kind, move.subject, move.reason) == (100.5, "topic", "swarm.0", "late")
    assert (move.source, move.target) == ("zone0/worker-0", "zone1/worker-0")


async def test_without_that_a_move_shows_in_where_things_are(answers: Answers) -> None:
    answers.rows["topic"] = [{"topic": "swarm.0", "members": ["zone0/worker-0"]}]
    answers.rows["client"] = [{"client": "drone0-0", "home": "zone0"}]
    one = observer()
    await one.read()
    assert not one.moves
    answers.rows["topic"] = [{"topic": "swarm.0", "members": ["zone1/worker-0"]}]
    answers.rows["client"] = [{"client": "drone0-0", "home": "zone1"}, {"client": "drone0-1", "home": "zone1"}]
    await one.read()
    assert [(move.kind, move.subject, move.source, move.target) for move in one.moves] == [
        ("topic", "swarm.0", "zone0/worker-0", "zone1/worker-0"),
        ("client", "drone0-0", "zone0", "zone1"),
    ]


async def test_a_coordinator_that_is_down_for_a_while_is_an_error_of_that_moment(answers: Answers) -> None:
    answers.rows["move"] = [TOLD]
    one = observer()
    await one.read()
    del answers.rows["move"]
    with pytest.raises(CoordinatorError):
        await one.read()
    assert len(one.moves) == 1
