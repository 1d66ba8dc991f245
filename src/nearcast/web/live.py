"""The present state, asked of the coordinator once a second for all pages and event streams together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.errors import NearcastError
from nearcast.nats.tasks import cancel_and_wait
from nearcast.web.client_positions import ClientPositions
from nearcast.web.panel_history import PERIOD, DashboardReading, PanelHistory
from nearcast.web.snapshot import Snapshot

if TYPE_CHECKING:
    from nearcast.protocol.data_cluster import DataClusterState
    from nearcast.web.operations import Operations

__all__ = ["Live"]

_log = logging.getLogger(__name__)
_PERIOD = 1.0
_CATALOG_PERIOD = 5.0
_POINTS = 120  # of a topic's latency, one per period


class Live:
    """`now` is the last snapshot. channels, datasets, faults: of the catalog, read less often, as are the data
    cluster's state (and the one before it, so many seconds ago) and what the stores have of each topic.

    announcement: what an operator tells all who look at the console. positions: where clients say they are.

    latencies: of each topic, measured p90 in ms, the last two minutes. panels: those of the dashboard.
    sleep: how it waits for the next period.
    """

    def __init__(
        self,
        operations: Operations,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._operations, self._sleep, self._clock = operations, sleep, clock
        self._changed = asyncio.Condition()
        self.now = Snapshot()
        self.announcement = ""
        self.channels: list[dict[str, Any]] = []
        self.datasets: list[dict[str, Any]] = []
        self.faults: dict[str, str] = {}
        self.cluster: DataClusterState | None = None
        self.cluster_before: DataClusterState | None = None
        self.cluster_seconds, self._cluster_at = 0.0, 0.0
        self.replicas: list[dict[str, Any]] = []
        self.latencies: dict[str, deque[float | None]] = {}
        self.panels = PanelHistory()
        self._at_last_point: tuple[Snapshot, float] | None = None
        self.positions = ClientPositions(clock)

    async def run(self) -> None:
        """Ask until cancelled. The catalog is read beside it: a store that does not answer must not stop the rest."""
        catalog = asyncio.create_task(self._follow_catalog(), name="catalog")
        try:
            while True:
                try:
                    await self._take()
                except Exception:
                    _log.exception("the state cannot be shown")
                await self._sleep(_PERIOD)
        finally:
            await cancel_and_wait(catalog)

    async def next(self, number: int) -> Snapshot:
        """The first snapshot after that number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.now.number > number)
            return self.now

    async def _follow_catalog(self) -> None:
        while True:
            if not self.now.problem:
                for read in (self._read_catalog, self._read_replicas):
                    try:
                        await read()
                    except Exception as error:  # the state is shown all the same
                        _log.warning("%s cannot be read: %s", read.__name__.removeprefix("_read_"), error)
            await self._sleep(_CATALOG_PERIOD if not self.now.problem else _PERIOD)

    async def _read_catalog(self) -> None:
        operations = self._operations
        self.channels = [msgspec.to_builtins(spec) for spec in (await operations.channels()).values()]
        self.datasets = [msgspec.to_builtins(spec) for spec in (await operations.datasets()).values()]
        self.faults = await operations.faults()
        if self.datasets:
            state, now = await operations.cluster_state(), self._clock()
            self.cluster_before, self.cluster = self.cluster, state
            self.cluster_seconds, self._cluster_at = now - self._cluster_at, now

    async def _read_replicas(self) -> None:
        self.replicas = await self._operations.replicas(self.now.topics)

    async def _take(self) -> None:
        ask, before = self._operations.ask, self.now
        try:
            status, sites, topics, moves = await asyncio.gather(
                ask("coordinator", "status"), ask("site", "map"), ask("topic", "figures"), ask("move", "ls")
            )
        except Exception as error:
            if not isinstance(error, NearcastError):  # an odd answer must not end the console
                _log.exception("the state cannot be read")
            taken = replace(before, number=before.number + 1, problem=str(error))
        else:
            taken = Snapshot(before.number + 1, "", status, sites, topics, moves)
            known = {topic["topic"] for topic in topics}
            self.latencies = {name: points for name, points in self.latencies.items() if name in known}
            for topic in topics:
                points = self.latencies.setdefault(topic["topic"], deque(maxlen=_POINTS))
                points.append(topic.get("measured_p90_ms"))
            if taken.number % PERIOD == 1:
                self._add_point(taken)
        async with self._changed:
            self.now = taken
            self._changed.notify_all()

    def _add_point(self, taken: Snapshot) -> None:
        now = self._clock()
        before, at = self._at_last_point or (taken, now)
        self._at_last_point = taken, now
        cluster = self.cluster, self.cluster_before, self.cluster_seconds
        self.panels.add(DashboardReading(taken, before, max(now - at, 1e-3), *cluster))
