"""A store that was away catches up beside live traffic: its rate, and what the live traffic's p99 becomes meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from benchmarks.measure import Figure

import nats
import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.site.site import Site

MISSED = 100_000
LIVE = """
import asyncio, sys, time, nearcast, uvloop
async def main(url):
    async with nearcast.connect(url) as client:
        await client.publish("log", b"first")
        print("ready", flush=True)
        took = []
        start = time.perf_counter()
        n = 0
        while True:
            n += 1
            await asyncio.sleep(max(0.0, start + n * 0.005 - time.perf_counter()))
            sent = time.perf_counter()
            await client.publish("log", b"x" * 128, timeout=60)
            print(sent, time.perf_counter() - sent, flush=True)
uvloop.run(main(sys.argv[1]))
"""
City = Callable[[tuple[str, ...], tuple[TopicSpec, ...]], AbstractAsyncContextManager[dict[str, Site]]]


async def repair(city: City) -> list[Figure]:
    """Three replicas, quorum 2; one store away for 100,000 messages; live publications from another process."""
    names = ("a", "b", "c")
    async with city(names, (TopicSpec("log", replicas=names, quorum=2),)) as sites:
        away = sites["c"]
        assert away.store is not None
        assert away.agent is not None
        services = away.agent.client_services.store
        assert services is not None
        await _until(lambda: not services.repair.behind("log"))
        await away.store.stop()
        async with nearcast.connect(sites["a"].spec.url) as client:
            for _ in range(MISSED // 1000):
                receipts = [await client.publish_nowait("log", b"x" * 128, timeout=60) for _ in range(1000)]
                for receipt in receipts:
                    await receipt
        live = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LIVE, sites["a"].spec.url, stdout=asyncio.subprocess.PIPE
        )
        took: list[tuple[float, float]] = []
        assert live.stdout is not None
        await live.stdout.readline()
        reading = asyncio.create_task(_read(live.stdout, took))
        await asyncio.sleep(10)
        await away.store.start()
        stored = await _first_stored(away.spec.url)
        began, used = time.perf_counter(), time.process_time()
        await _until(lambda: services.repair.fetched.get("log", 0) >= MISSED)
        ended, used = time.perf_counter(), time.process_time() - used
        fastest, rate = (MISSED - stored) / used, (MISSED - stored) / (ended - began)
        live.terminate()
        await live.wait()
        await reading
    before = [latency for sent, latency in took if sent < began - 3]
    during = [latency for sent, latency in took if began <= sent <= ended]
    p99 = [statistics.quantiles(one, n=100)[98] for one in (during, before)]
    return [
        Figure("repair beside live traffic, 128 B", f"{rate:,.0f}/s", "20,000/s", rate / 20_000, "≥ 1"),
        Figure(
            "the same, by the processor time of the agents", f"{fastest:,.0f}/s", "20,000/s", fastest / 20_000, "≥ 1"
        ),
        Figure(
            "p99 of live publications with quorum 2 during repair, over without",
            f"{p99[0] * 1e3:.1f} ms",
            f"{p99[1] * 1e3:.1f} ms",
            p99[0] / p99[1],
            "< 1.5",
        ),
    ]


async def _read(stream: asyncio.StreamReader, took: list[tuple[float, float]]) -> None:
    async for line in stream:
        sent, latency = line.split()
        took.append((float(sent), float(latency)))


async def _first_stored(url: str) -> int:
    """How many messages the store has when it has begun to get what it missed; it counts them once they are indexed."""
    connection = await nats.connect(url)
    try:
        jsm = connection.jsm(prefix=subjects.store_api("c"))
        async with asyncio.timeout(180):
            while True:
                with contextlib.suppress(nats.errors.Error, TimeoutError):  # it is starting
                    count = (await jsm.stream_info(subjects.stream_name("log"))).state.messages
                    if count > 1_000:
                        return count
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(180):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
