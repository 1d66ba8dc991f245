"""What credentials and TLS cost: `python -m benchmarks.security`. Both deployments run at the same time, in one run.

Each figure is measured in pairs, one right after the other. On a busy machine the processor time of all processes that
handle a message (the clients and all processes of the site) says more than the rate.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import psutil
import uvloop
from benchmarks.measure import Figure, print_table, rate, ratio

import nearcast
from nearcast.lab.scenarios import echo
from nearcast.site.site import Site
from nearcast.testing import TopicSpec, sites

_PAYLOAD, _MESSAGES, _CONNECTIONS, _PAIRS = bytes(128), 60_000, 20, 9
_OPEN, _SECURED = "open", "JWT and TLS"
_PLAIN, _PROCESSED, _STORED = "bench.plain", "bench.processed", "bench.stored"
_TOPICS = (
    TopicSpec(_PROCESSED, ("edge",)),
    TopicSpec(_STORED, replicas=("edge",), quorum=1),
)


def processor_seconds(site: Site) -> float:
    """Of this process, in which clients and agent run, and of those that it started for the site."""
    servers = [site.broker, site.store, *site.workers.values()]
    roots = [psutil.Process(server.pid) for server in servers if server is not None and server.pid]
    times = [one.cpu_times() for root in roots for one in (root, *root.children(recursive=True))]
    return time.process_time() + sum(one.user + one.system for one in times)


async def throughput(topic: str, site: Site, credentials: Mapping[str, Path]) -> tuple[float, float]:
    """Messages per second from one client to another, and processor microseconds per message.

    What a processor makes of them comes back on the same topic, so that the same loop measures both.
    """
    publisher = nearcast.connect(site.spec.url, credentials=credentials.get("publisher"))
    subscriber = nearcast.connect(site.spec.url, credentials=credentials.get("subscriber"))
    async with publisher as source, subscriber as sink, sink.subscribe(topic, buffer=_MESSAGES) as received:
        await source.publish(topic, _PAYLOAD)
        await anext(received)
        began, used = time.perf_counter(), processor_seconds(site)

        async def publish() -> None:
            for _ in range(_MESSAGES):
                await source.publish(topic, _PAYLOAD)
            await source.flush()

        sending = asyncio.create_task(publish())
        for _ in range(_MESSAGES):
            await anext(received)
        await sending
        seconds = time.perf_counter() - began
        return _MESSAGES / seconds, 1e6 * (processor_seconds(site) - used) / _MESSAGES


async def acknowledged(site: Site, credentials: Mapping[str, Path]) -> tuple[float, float]:
    """Publications per second that a store acknowledged, many under way, and processor microseconds of each."""
    async with nearcast.connect(site.spec.url, credentials=credentials.get("publisher")) as client:
        await client.publish(_STORED, _PAYLOAD)
        began, used = time.perf_counter(), processor_seconds(site)
        receipts = [await client.publish_nowait(_STORED, _PAYLOAD, timeout=60) for _ in range(_MESSAGES // 4)]
        for receipt in receipts:
            await receipt
        seconds = time.perf_counter() - began
        return len(receipts) / seconds, 1e6 * (processor_seconds(site) - used) / len(receipts)


async def connect_cost(site: Site, credentials: Mapping[str, Path]) -> tuple[float, float]:
    """The median milliseconds until a client is connected, and the processor milliseconds of each."""
    times, used = [], processor_seconds(site)
    for _ in range(_CONNECTIONS):
        began = time.perf_counter()
        async with nearcast.connect(site.spec.url, credentials=credentials.get("publisher")):
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times), 1000 * (processor_seconds(site) - used) / _CONNECTIONS


async def in_pairs(
    runs: Mapping[str, Callable[[], Awaitable[tuple[float, float]]]],
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Both figures of each run, again and again in turn, so that a busy moment does not hit one alone."""
    found = [(name, await run()) for _ in range(_PAIRS) for name, run in runs.items()]
    first, second = ({name: [one[n] for run, one in found if run == name] for name in runs} for n in (0, 1))
    return first, second


def figure(what: str, found: dict[str, list[float]], target: str = "") -> Figure:
    """Medians, and the median of the ratios of the pairs."""
    values = {name: f"{statistics.median(values):.1f}" for name, values in found.items()}
    return Figure(what, values[_SECURED], values[_OPEN], ratio(found, _SECURED, _OPEN), target)


async def main() -> None:
    """Measure and print."""
    start = partial(sites, *_TOPICS, names=("edge",), processors=(echo,))
    async with start() as plain, start(secured=True) as secured:
        assert secured.auth is not None
        users = {name: secured.auth.add_user("service", name) for name in ("publisher", "subscriber")}
        ways: dict[str, tuple[Site, Mapping[str, Path]]] = {
            _OPEN: (plain.sites["edge"], {}),
            _SECURED: (secured.sites["edge"], users),
        }
        paths: dict[str, Callable[[Site, Mapping[str, Path]], Awaitable[tuple[float, float]]]] = {
            "publication → subscriber": partial(throughput, _PLAIN),
            "publication → processor → subscriber": partial(throughput, _PROCESSED),
            "publication → acknowledged by a store": acknowledged,
        }
        figures = []
        for what, run in paths.items():
            rates, used = await in_pairs({name: partial(run, *way) for name, way in ways.items()})
            share = ratio(rates, _SECURED, _OPEN)
            figures.append(Figure(f"{what}, msg/s", rate(rates[_SECURED]), rate(rates[_OPEN]), share, "≥ 0.9"))
            figures.append(figure(f"{what}, processor µs per message", used))
        waits, work = await in_pairs({name: partial(connect_cost, *way) for name, way in ways.items()})
    figures += [figure("connect, ms", waits), figure("connect, processor ms", work)]
    print_table("credentials and TLS over none, 128 bytes", figures)


if __name__ == "__main__":
    uvloop.run(main())
