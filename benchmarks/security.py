"""What credentials and TLS cost: `python -m benchmarks.security`. Both deployments run at the same time, in one run."""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial
from pathlib import Path

import uvloop
from benchmarks.data_plane import interleaved, rate, ratio
from benchmarks.measure import Figure, print_table

import nearcast
from nearcast.testing import sites

_PAYLOAD, _MESSAGES, _CONNECTIONS = bytes(128), 60_000, 20


async def throughput(url: str, credentials: dict[str, Path]) -> float:
    """Messages per second from one client to another through one broker."""
    publisher = nearcast.connect(url, credentials=credentials.get("publisher"))
    subscriber = nearcast.connect(url, credentials=credentials.get("subscriber"))
    async with publisher as source, subscriber as sink, sink.subscribe("bench.t", buffer=_MESSAGES) as received:
        await source.publish("bench.t", _PAYLOAD)
        await anext(received)
        began = time.perf_counter()

        async def publish() -> None:
            for _ in range(_MESSAGES):
                await source.publish("bench.t", _PAYLOAD)
            await source.flush()

        sending = asyncio.create_task(publish())
        for _ in range(_MESSAGES):
            await anext(received)
        await sending
        return _MESSAGES / (time.perf_counter() - began)


async def connect_ms(url: str, credentials: dict[str, Path]) -> float:
    """The median time until a client is connected."""
    times = []
    for _ in range(_CONNECTIONS):
        began = time.perf_counter()
        async with nearcast.connect(url, credentials=credentials.get("publisher")):
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


async def main() -> None:
    """Measure and print."""
    async with sites(names=("edge",)) as plain, sites(names=("edge",), secured=True) as secured:
        assert secured.auth is not None
        users = {name: secured.auth.add_user("service", name) for name in ("publisher", "subscriber")}
        ways: dict[str, tuple[str, dict[str, Path]]] = {
            "open": (plain.url("edge"), {}),
            "JWT and TLS": (secured.url("edge"), users),
        }
        found = await interleaved({name: partial(throughput, *way) for name, way in ways.items()})
        times = await interleaved({name: partial(connect_ms, *way) for name, way in ways.items()})
    share = ratio(found, "JWT and TLS", "open")
    waits = {name: statistics.median(values) for name, values in times.items()}
    print_table(
        "credentials and TLS",
        [
            Figure("128 bytes, msg/s", rate(found["JWT and TLS"]), rate(found["open"]), share, "≥ 0.9"),
            Figure(
                "connect, ms",
                f"{waits['JWT and TLS']:.1f}",
                f"{waits['open']:.1f}",
                waits["JWT and TLS"] / waits["open"],
            ),
        ],
    )


if __name__ == "__main__":
    uvloop.run(main())
