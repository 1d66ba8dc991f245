"""The present state, asked of the coordinator once a second for all pages and event streams together."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from nearcast.web.operations import Operations

__all__ = ["Live", "Snapshot"]

_log = logging.getLogger(__name__)
_PERIOD = 1.0
_CATALOG_PERIODS = 5
_POINTS = 120  # of a topic's latency, one per period


@dataclass(frozen=True)
class Snapshot:
    """number: grows with each. problem: why there is nothing new; the rest is then what was known before."""

    number: int = 0
    problem: str = "not asked yet"
    status: dict[str, Any] = field(default_factory=dict)
    sites: list[dict[str, Any]] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)


class Live:
    """`now` is the last snapshot. channels, datasets: of the catalog, read less often.

    announcement: what an operator tells all who look at the console.

    latencies: of each topic, measured p90 in ms, the last two minutes.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._changed = asyncio.Condition()
        self.now = Snapshot()
        self.announcement = ""
        self.channels: list[dict[str, Any]] = []
        self.datasets: list[dict[str, Any]] = []
        self.latencies: dict[str, deque[float | None]] = {}

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self._take()
            if self.now.number % _CATALOG_PERIODS == 1 and not self.now.problem:
                await self._read_catalog()
            await asyncio.sleep(_PERIOD)

    async def next(self, number: int) -> Snapshot:
        """The first snapshot after that number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.now.number > number)
            return self.now

    async def _read_catalog(self) -> None:
        try:
            self.channels, self.datasets = await self._operations.channels(), await self._operations.datasets()
        except Exception as error:  # the state is shown all the same
            _log.warning("the catalog cannot be read: %s", error)

    async def _take(self) -> None:
        ask, before = self._operations.ask, self.now
        try:
            status, sites, topics, moves = await asyncio.gather(
                ask("coordinator", "status"), ask("site", "map"), ask("topic", "figures"), ask("move", "ls")
            )
        except NearcastError as error:
            taken = Snapshot(before.number + 1, str(error), before.status, before.sites, before.topics, before.moves)
        except Exception as error:  # an odd answer must not end the console
            _log.exception("the state cannot be read")
            taken = Snapshot(before.number + 1, str(error), before.status, before.sites, before.topics, before.moves)
        else:
            taken = Snapshot(before.number + 1, "", status, sites, topics, moves)
            known = {topic["topic"] for topic in topics}
            self.latencies = {name: points for name, points in self.latencies.items() if name in known}
            for topic in topics:
                points = self.latencies.setdefault(topic["topic"], deque(maxlen=_POINTS))
                points.append(topic.get("measured_p90_ms"))
        async with self._changed:
            self.now = taken
            self._changed.notify_all()
