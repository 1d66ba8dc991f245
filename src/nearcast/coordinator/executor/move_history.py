"""The moves that have ended: the last of them, and how many there were since this coordinator leads."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearcast.coordinator.moves import ClientMove

if TYPE_CHECKING:
    from nearcast.coordinator.executor.steps import Finish
    from nearcast.coordinator.moves import Move

__all__ = ["FinishedMove", "MoveHistory", "place_of"]

_REMEMBERED = 1000


@dataclass(frozen=True)
class FinishedMove:
    """A move, how it ended, when (Unix seconds), and how long it took."""

    move: Move
    outcome: str
    ended: float
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The move as `nearcast plan history` shows it."""
        move = self.move
        return {
            "time": self.ended,
            "kind": kind_of(move),
            "subject": move.client if isinstance(move, ClientMove) else move.topic,
            "from": place_of(move.before),
            "to": place_of(move.after),
            "goal": move.goal,
            "reason": move.reason,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 3),
        }


class MoveHistory:
    """finished: the last ones, the oldest first. counts: of all, by kind, goal and whether they were done."""

    def __init__(self) -> None:
        self.finished: deque[FinishedMove] = deque(maxlen=_REMEMBERED)
        self.counts: Counter[tuple[str, str, bool]] = Counter()
        self.seconds: dict[str, float] = {}

    def add(self, move: Move, finish: Finish, seconds: float) -> None:
        """A move has ended."""
        kind = kind_of(move)
        self.counts[kind, move.goal, not finish.reason] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.finished.append(FinishedMove(move, finish.reason or "done", time.time(), seconds))


def kind_of(move: Move) -> str:
    """What a move moves: `topic`, `client` or `replicas`."""
    return str(move.__struct_config__.tag)


def place_of(where: str | tuple[object, ...]) -> str:
    """Where something is, before or after a move."""
    return where if isinstance(where, str) else ", ".join(map(str, where))
