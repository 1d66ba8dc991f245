"""R_out: the output rate of a broker above which p95 latency degrades, found by raising the rate step by step."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearcast.client import connect
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec
from nearcast.site.ports import free_ports
from nearcast.site.site import run_sites
from nearcast.wire.message import Message

__all__ = ["Step", "profile"]

_TICK = 0.01


@dataclass(frozen=True)
class Step:
    """What was asked for, what came out, and how long it took."""

    rate_out: float
    delivered: float
    p95_ms: float
    degraded: bool


async def profile(
    subscribers: int, size: int, seconds: float, first_rate: float, growth: float, tolerance: float
) -> AsyncIterator[Step]:
    """Raise the output rate until p95 is `tolerance` times the best so far, or a tenth is not delivered in time."""
    with tempfile.TemporaryDirectory() as folder:
        site = SiteSpec("profile", port=free_ports(10, 18_000, 19_000))
        async with run_sites(Deployment((site,)), Path(folder)):
            best, rate = float("inf"), first_rate
            while True:
                delivered, p95 = await _at_rate(site.url, subscribers, size, seconds, rate)
                degraded = p95 > max(tolerance * best, 1.0) or delivered < 0.9 * rate
                best = min(best, p95)
                yield Step(rate, delivered, p95, degraded)
                if degraded:
                    return
                rate *= growth


async def _at_rate(url: str, subscribers: int, size: int, seconds: float, rate_out: float) -> tuple[float, float]:
    clients = [connect(url) for _ in range(subscribers)]
    latencies: list[float] = []
    count = 0
    begin = time.time() + seconds / 5
    end = begin + 4 * seconds / 5

    def note(message: Message) -> None:
        nonlocal count
        published = message.stamp.published_us / 1e6
        now = time.time()
        if published >= begin and now <= end:
            count += 1
            latencies.append(1000 * (now - published))

    try:
        for client in clients:
            await client.__aenter__()
            await client.subscribe("load", callback=note)
        async with connect(url) as publisher:
            payload, sent, started = bytes(size), 0, time.perf_counter()
            while (elapsed := time.perf_counter() - started) < seconds:
                due = int(rate_out / subscribers * elapsed)
                for _ in range(due - sent):
                    await publisher.publish("load", payload)
                sent = max(sent, due)
                await asyncio.sleep(_TICK)
            await asyncio.sleep(0.3)
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)
    p95 = float(np.percentile(latencies, 95)) if latencies else float("inf")
    return count / (4 * seconds / 5), p95
