"""R_out: the output rate of a broker above which p95 latency degrades, found by raising the rate step by step.

The load must cost less to make and to take than to pass on, or the limit found is the clients'. So publications are
written to the socket in blocks, and subscribers only count the bytes they are sent. Latency is that of one client of
the SDK which publishes to itself beside the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearcast.client import connect
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec
from nearcast.message import Message
from nearcast.site.ports import free_ports
from nearcast.site.site import run_sites

__all__ = ["RateStep", "profile"]

_TICK = 0.005
_PROBE_EVERY = 0.004
_HELLO = b'CONNECT {"verbose":false,"pedantic":false,"echo":false}\r\nPING\r\n'


@dataclass(frozen=True)
class RateStep:
    """What was asked for, what came out, and how long it took."""

    rate_out: float
    delivered: float
    p95_ms: float
    degraded: bool


async def profile(
    subscribers: int, size: int, seconds: float, first_rate: float, growth: float, tolerance: float
) -> AsyncIterator[RateStep]:
    """Raise the output rate until p95 is `tolerance` times the best so far, or a tenth is not delivered in time."""
    with tempfile.TemporaryDirectory() as folder:
        site = SiteSpec("profile", port=free_ports(10))
        async with run_sites(Deployment((site,)), Path(folder)):
            best, rate = float("inf"), first_rate
            while True:
                delivered, p95 = await _at_rate(site, subscribers, size, seconds, rate)
                degraded = p95 > max(tolerance * best, 1.0) or delivered < 0.9 * rate
                best = min(best, p95)
                yield RateStep(rate, delivered, p95, degraded)
                if degraded:
                    return
                rate *= growth


class _Counter(asyncio.Protocol):
    """A subscriber that counts bytes and looks at none of them."""

    def __init__(self) -> None:
        self.bytes = 0

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)


async def _at_rate(site: SiteSpec, subscribers: int, size: int, seconds: float, rate_out: float) -> tuple[float, float]:
    """Messages per second that came out, and p95 in milliseconds beside them; the first fifth is left out."""
    loop = asyncio.get_running_loop()
    message = b"PUB load %d\r\n%b\r\n" % (size, bytes(size))
    delivered_bytes = len(b"MSG load 1 %d\r\n" % size) + size + 2
    async with contextlib.AsyncExitStack() as stack:
        counters = []
        for _ in range(subscribers):
            transport, counter = await loop.create_connection(_Counter, site.host, site.port)
            stack.callback(transport.close)
            transport.write(_HELLO + b"SUB load 1\r\n")
            counters.append(counter)
        source, _ = await loop.create_connection(_Counter, site.host, site.port)
        stack.callback(source.abort)
        source.write(_HELLO)
        probe = await stack.enter_async_context(connect(site.url))
        latencies: list[float] = []
        await probe.subscribe("probe", callback=lambda found: _note(found, latencies))
        started, sent, begun, before = time.perf_counter(), 0, 0.0, 0
        next_probe = started
        while (elapsed := time.perf_counter() - started) < seconds:
            if not begun and elapsed > seconds / 5:
                latencies.clear()
                begun, before = time.perf_counter(), sum(counter.bytes for counter in counters)
            due = int(rate_out / subscribers * elapsed)
            if due > sent:
                source.write(message * (due - sent))
                sent = due
            if time.perf_counter() >= next_probe:
                await probe.publish("probe", b"")
                next_probe = time.perf_counter() + _PROBE_EVERY
            await asyncio.sleep(min(_TICK, _PROBE_EVERY))
        came = sum(counter.bytes for counter in counters) - before
        delivered = came / delivered_bytes / (time.perf_counter() - begun)
        await asyncio.sleep(0.1)
    return delivered, float(np.percentile(latencies, 95)) if latencies else float("inf")


def _note(message: Message, latencies: list[float]) -> None:
    latencies.append(time.time() * 1000 - message.stamp.published_us / 1000)
