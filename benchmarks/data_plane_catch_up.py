"""`kill -9` of the only worker that manages a durable topic, under load: how soon all is processed after its return."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from benchmarks.measure import Figure

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.site.site import Site
from nearcast.site.supervisor import SupervisedProcess

RATE, KILLS, BEFORE, AFTER = 1_000, 3, 3.0, 12.0
City = Callable[[tuple[str, ...], tuple[TopicSpec, ...]], AbstractAsyncContextManager[dict[str, Site]]]


class Ledger:
    """When each publication was acknowledged, and when its notification came, by id."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, float] = {}
        self.came: dict[str, float] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    def take(self, message: nearcast.Message) -> None:
        self.came.setdefault(message.id.partition(";")[0], time.perf_counter())

    async def publish(self, client: nearcast.Client, seconds: float) -> None:
        start, payload = time.perf_counter(), b"x" * 128
        for n in range(int(RATE * seconds)):
            await asyncio.sleep(max(0.0, start + n / RATE - time.perf_counter()))
            task = asyncio.create_task(self._note(await client.publish_nowait("echo.x", payload, timeout=60)))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
        await asyncio.gather(*self._waiting)

    async def _note(self, receipt: asyncio.Future[nearcast.Receipt]) -> None:
        self.acknowledged[(await receipt).id] = time.perf_counter()

    def is_complete(self) -> bool:
        return all(one in self.came for one in self.acknowledged)


async def catch_up(city: City) -> list[Figure]:
    """Its return: its successor gives the first notification. Then all that was acknowledged by then is processed."""
    names = ("a", "b", "c")
    away: list[float] = []
    seconds: list[float] = []
    behind: list[int] = []
    async with city(names, (TopicSpec("echo.x", ("a",), names, quorum=2),)) as sites:
        worker = sites["a"].workers["worker-0"]
        async with nearcast.connect(sites["b"].spec.url) as client, nearcast.connect(sites["c"].spec.url) as reader:
            for _ in range(KILLS):
                ledger = Ledger()
                subscription = await reader.subscribe("echo.x", callback=ledger.take)
                publishing = asyncio.create_task(ledger.publish(client, BEFORE + AFTER))
                await asyncio.sleep(BEFORE)
                killed = time.perf_counter()
                back = await _kill(worker, ledger)
                before = [one for one, when in ledger.acknowledged.items() if when <= back]
                behind.append(sum(one not in ledger.came for one in before))
                await publishing
                await wait_for(ledger.is_complete)
                away.append(back - killed)
                seconds.append(max(0.0, max(ledger.came[one] for one in before) - back))
                await subscription.close()
    what = f"kill -9 of the only managing worker at {RATE:,} msg/s: all acknowledged before its return processed"
    detail = f"away for {statistics.median(away):.1f} s, {statistics.median(behind):,.0f} behind at its return"
    worst = f"slowest of {KILLS}: {max(seconds):.2f} s; {detail}"
    return [Figure(what, f"{statistics.median(seconds):.2f} s", worst, max(seconds) / 3.0, "≤ 3 s")]


async def _kill(worker: SupervisedProcess, ledger: Ledger) -> float:
    """Kill a worker; when the first notification of its successor came."""
    assert worker.pid is not None
    restarts = worker.restarts
    os.kill(worker.pid, signal.SIGKILL)
    await wait_for(lambda: worker.restarts > restarts)
    await asyncio.sleep(0.2)  # what the killed one had sent has come
    came = len(ledger.came)
    await wait_for(lambda: len(ledger.came) > came)
    return time.perf_counter()


async def wait_for(holds: Callable[[], bool]) -> None:
    """Wait for a condition; TimeoutError after a minute and a half."""
    async with asyncio.timeout(90):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
