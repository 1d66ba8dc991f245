"""Which topics and clients moved, and when: as the coordinator tells, or by looking at where they are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["MoveObserver", "ObservedMove"]

_LOOK_EVERY = 0.5
_READ_EVERY = 5.0  # the coordinator keeps its last 1,000 moves


@dataclass(frozen=True)
class ObservedMove:
    """A topic or client that went from one place to another. at: Unix seconds."""

    at: float
    kind: str
    subject: str
    source: str
    target: str
    reason: str = ""


class MoveObserver:
    """Collects moves while it runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._told = False
        self._places: dict[tuple[str, str], str] = {}
        self._moves: dict[tuple[float, str, str], ObservedMove] = {}

    @property
    def moves(self) -> list[ObservedMove]:
        """Those seen so far, in order of time."""
        return sorted(self._moves.values(), key=lambda move: move.at)

    async def run(self) -> None:
        """Observe until cancelled."""
        while True:
            with contextlib.suppress(CoordinatorError):  # it may be down on purpose, and come back
                await self.read()
            await asyncio.sleep(_READ_EVERY if self._told else _LOOK_EVERY)

    async def read(self) -> None:
        """The finished moves that the coordinator remembers; if it does not, what is elsewhere than it was."""
        try:
            rows = await self._call("move")
        except CoordinatorError:
            if self._told:
                raise
            await self._look()
            return
        self._told = True
        for row in rows:
            if row["outcome"] == "done":
                source, target = _text(row["from"]), _text(row["to"])
                self._add(ObservedMove(row["time"], row["kind"], row["subject"], source, target, row["reason"]))

    async def _look(self) -> None:
        for kind, place in (("topic", "members"), ("client", "home")):
            for row in await self._call(kind):
                target = _text(row[place])
                source = self._places.get((kind, row[kind]), target)
                self._places[kind, row[kind]] = target
                if source != target:
                    self._add(ObservedMove(time.time(), kind, row[kind], source, target))

    def _add(self, move: ObservedMove) -> None:
        self._moves[move.at, move.kind, move.subject] = move

    async def _call(self, noun: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await call_coordinator(self._connection, noun, "ls", {}, list, 5.0)
        return rows


def _text(place: Any) -> str:
    return ", ".join(map(str, place)) if isinstance(place, list) else str(place)
