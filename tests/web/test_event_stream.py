"""A day of the console's state and its event streams, in simulated time: memory stays as it was after an hour."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import deque
from typing import Any

from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.data_cluster import DataClusterState, ProducerState
from nearcast.web.live import Live
from nearcast.web.metrics import WebMetrics
from nearcast.web.rest import event_stream

HOUR = 3600
LONG_STREAM, SHORT_STREAM = 24 * HOUR, 600


class Coordinator:
    """Answers as a coordinator whose registry changes all the time: topics come and go, moves are made."""

    def __init__(self) -> None:
        self.second = 0
        self.moves: deque[dict[str, Any]] = deque(maxlen=3)

    async def ask(self, noun: str, verb: str, **body: Any) -> Any:
        match noun:
            case "coordinator":
                self.second += 1
                return {"leader": "c", "sites": 2, "lost": [], "topics": 4, "clients": self.second % 7}
            case "site":
                return [{"site": name, "clients": self.second % 5, "round_trips_ms": {}} for name in ("a", "b")]
            case "topic":
                names = [f"t{n}.{self.second // 60}" for n in range(2)]  # each minute other topics
                return [{"topic": name, "measured_p90_ms": self.second % 50} for name in names]
            case _:
                self.moves.append({"time": self.second, "subject": f"t0.{self.second}"})
                return list(self.moves)

    async def channels(self) -> dict[str, ChannelSpec]:
        return {"c": ChannelSpec(f"c{self.second}", "SELECT 1")}

    async def datasets(self) -> dict[str, DatasetSpec]:
        return {"d": DatasetSpec("d", "id STRING")}

    async def faults(self) -> dict[str, str]:
        return {f"c{self.second}": "a reason"}

    async def cluster_state(self) -> DataClusterState:
        return DataClusterState([ProducerState(f"d{self.second}", 1, 0, 0, 1, 0, 0.1, "")], [], {"c": self.second})

    async def replicas(self, topics: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"topic": topic["topic"], "site": "a", "messages": self.second} for topic in topics]


def blocks() -> int:
    """How many blocks of memory Python's objects have."""
    gc.collect()
    return sys.getallocatedblocks()


async def test_a_day_of_events_leaves_memory_flat() -> None:
    coordinator = Coordinator()

    async def step(seconds: float) -> None:  # the streams run, then the next simulated second begins
        if seconds > 1:
            await live.next(live.now.number + round(seconds) - 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    live = Live(coordinator, step)
    metrics = WebMetrics(live)

    async def read(limit: int) -> int:
        """A stream until its end; the number of its last state."""
        async for event in event_stream(live, metrics, limit):
            assert len(event) < 2_000
        return int(json.loads(event.split("data: ")[1])["number"])

    async def come_and_go() -> None:  # pages that are opened and left
        while True:
            await read(SHORT_STREAM)

    running = asyncio.create_task(live.run())
    visitor = asyncio.create_task(come_and_go())
    try:
        assert await read(HOUR) >= HOUR
        after_an_hour, tasks = blocks(), len(asyncio.all_tasks())
        assert await read(LONG_STREAM) > LONG_STREAM
        assert len(asyncio.all_tasks()) <= tasks + 4  # those that ask at this moment
        assert blocks() < after_an_hour + 2_000
        assert len(live.latencies) == 2
        assert metrics.registry.get_sample_value("nearcast_web_event_streams") == 1
    finally:
        for task in (running, visitor):
            await cancel_and_wait(task)
    assert metrics.registry.get_sample_value("nearcast_web_event_streams") == 0
