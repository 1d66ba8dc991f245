"""Plays the changes of a scenario at their times, asks for the oracle's moves, and observes all moves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nearcast.errors import NearcastError
from nearcast.lab.scenarios.observed_moves import MoveObserver, ObservedMove
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator
from nearcast.nats.tasks import TaskSet

if TYPE_CHECKING:
    from nearcast.lab.scenarios.policies import Oracle, RequestedMove
    from nearcast.lab.scenarios.scenario import Scenario, ScheduledChange
    from nearcast.lab.wan import Area

__all__ = ["Conductor"]

_TICK = 0.5
_MOVE_LIMIT = 15.0
_ASK_AGAIN = 0.2


class Conductor:
    """Runs at the cloud's node, beside the coordinator if there is one."""

    def __init__(self, scenario: Scenario, area: Area, coordinator_url: str | None, oracle: Oracle | None) -> None:
        self._scenario, self._area, self._url, self._oracle = scenario, area, coordinator_url, oracle
        self._targets: dict[str, str] = {}
        self._tasks = TaskSet()

    async def run(self, start: float, warm_up: float, tick: Callable[[float], None]) -> list[ObservedMove]:
        """Play all changes, the measured time beginning at `start`. Returns the moves there were, also before it."""
        connection = await open_connection([self._url], name="conductor", timeout=10) if self._url else None
        try:
            observer = MoveObserver(connection) if connection is not None else None
            if observer is not None:
                self._tasks.spawn(observer.run())
            self._tasks.spawn(self._progress(start - warm_up, start + self._scenario.seconds, tick))
            if self._oracle is not None and connection is not None:
                await self._move_all(connection, self._oracle.at_start())
            for change in self._scenario.changes:
                await asyncio.sleep(start + change.at - time.time())
                self._play(change, connection)
            await asyncio.sleep(start + self._scenario.seconds - time.time())
            if observer is None:
                return []
            with contextlib.suppress(CoordinatorError):  # what it told before counts
                await observer.read()
            return observer.moves
        finally:
            await self._tasks.cancel()
            if connection is not None:
                await connection.close()

    def _play(self, change: ScheduledChange, connection: Connection | None) -> None:
        for site, delay in (change.ways or {}).items():
            self._area.set(change.node, site, delay_ms=delay)
        if self._oracle is not None and connection is not None:
            self._tasks.spawn(self._move_all(connection, self._oracle.at_change(change)))

    async def _move_all(self, connection: Connection, moves: list[RequestedMove]) -> None:
        await asyncio.gather(*(self._move(connection, move) for move in moves))

    async def _move(self, connection: Connection, move: RequestedMove) -> None:
        """Ask until it is done: a client may not have registered yet, or be on its way elsewhere."""
        body = {"name": move.subject, "to": [move.target]}
        self._targets[move.subject] = move.target
        deadline = time.monotonic() + _MOVE_LIMIT
        while self._targets[move.subject] == move.target:  # unless it shall be elsewhere by now
            try:
                answer = await call_coordinator(connection, move.kind, "move", body, dict[str, Any], _MOVE_LIMIT)
                problem = answer.get("error", "") if answer.get("outcome", "done") == "done" else answer["reason"]
            except NearcastError as error:
                problem = str(error)
            if not problem:
                return
            if time.monotonic() > deadline:
                raise NearcastError(f"{move.kind} {move.subject} was not moved to {move.target}: {problem}")
            await asyncio.sleep(_ASK_AGAIN)

    async def _progress(self, start: float, end: float, tick: Callable[[float], None]) -> None:
        while True:
            tick(min(1.0, (time.time() - start) / (end - start)))
            await asyncio.sleep(_TICK)
