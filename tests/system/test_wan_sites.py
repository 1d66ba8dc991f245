"""Three sites 10, 25 and 40 ms apart on an emulated wide area, and clients near each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from nearcast import connect
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec
from nearcast.lab.wan import Area, Topology, call_at, from_rtts, missing_right, sites_at, wide_area

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from nearcast.site.site import Site

pytestmark = [
    pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason)),
    pytest.mark.xdist_group("wan"),  # a start clears what killed emulators left, of any test
]

SITES = ("a", "b", "c")
BETWEEN = {("a", "b"): 10.0, ("b", "c"): 25.0, ("a", "c"): 40.0}
ACCESS = {"a": 3.0, "b": 2.0, "c": 5.0}


def car(site: str) -> str:
    """The node of the clients near a site."""
    return f"car_{site}"


def topology() -> Topology:
    one_way = dict(BETWEEN)
    for home in SITES:
        # A car's way to another site does not matter here: it talks to its home only.
        one_way |= {(car(home), site): ACCESS[home] if site == home else 100.0 for site in SITES}
        one_way |= {(car(home), car(other)): 100.0 for other in SITES if other < home}
    return from_rtts({pair: 2 * delay for pair, delay in one_way.items()})


def legs(source: str, destination: str) -> float:
    """From a car of one site to a car of another, in ms."""
    between = BETWEEN.get((source, destination)) or BETWEEN[destination, source]
    return ACCESS[source] + between + ACCESS[destination]


@dataclass(frozen=True)
class Arrival:
    """A message that came: when it was sent (s) and how long it took (ms)."""

    sent: float
    late: float


class Cars:
    """A subscriber near every site, publishers that send the time, and what arrived, by source and site."""

    def __init__(self, area: Area, sites: dict[str, Site]) -> None:
        self.area, self.sites = area, sites
        self.arrivals: dict[tuple[str, str], list[Arrival]] = defaultdict(list)

    async def listen(self, site: str) -> None:
        """Note what arrives near a site, until cancelled."""
        async with connect(self.sites[site].spec.url) as client, client.subscribe("from.*") as messages:
            async for message in messages:
                sent = float(message.payload)
                late = 1000 * (time.perf_counter() - sent)
                self.arrivals[message.topic.removeprefix("from."), site].append(Arrival(sent, late))

    async def publish(self, site: str, count: int) -> None:
        """Send from near a site, about 100 messages a second, until the broker has them all."""

        async def send() -> None:
            async with connect(self.sites[site].spec.url) as client:
                for _ in range(count):
                    await client.publish(f"from.{site}", str(time.perf_counter()).encode())
                    await asyncio.sleep(0.01)
                await client.flush()

        await call_at(self.area, car(site), send)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(call_at(self.area, car(site), partial(self.listen, site))) for site in SITES]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def arrived(self, source: str, destination: str, count: int) -> list[Arrival]:
        """So many messages, once they are there."""
        end = time.monotonic() + 60
        while len(self.arrivals[source, destination]) < count:
            assert time.monotonic() < end, (source, destination, len(self.arrivals[source, destination]))
            await asyncio.sleep(0.01)
        return self.arrivals[source, destination]

    async def until_all_reach_all(self) -> None:
        """Brokers found one another, and interest has spread."""
        end = time.monotonic() + 60
        while not all(self.arrivals[a, b] for a in SITES for b in SITES):
            assert time.monotonic() < end, self.arrivals
            await asyncio.gather(*(self.publish(site, 1) for site in SITES))
        # Those of the last round may still be on their way; they come before what is sent now.
        last = time.perf_counter()
        await asyncio.gather(*(self.publish(site, 1) for site in SITES))
        while not all(any(one.sent > last for one in self.arrivals[a, b]) for a in SITES for b in SITES):
            assert time.monotonic() < end, self.arrivals
            await asyncio.sleep(0.01)
        self.arrivals.clear()


def is_close(late_ms: float, expected_ms: float) -> bool:
    """Never early, and at most 2 ms late."""
    return expected_ms <= late_ms <= expected_ms + 2.0


@pytest.fixture
def punctual() -> Iterator[None]:
    """Latency is measured, not how busy the machine is: whatever starts here runs before other programs."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.fixture
async def cars(punctual: None, tmp_path: Path) -> AsyncIterator[Cars]:
    async with wide_area(topology()) as area:
        deployment = Deployment(tuple(SiteSpec(site, host=area.address(site)) for site in SITES), insecure=True)
        async with sites_at(area, deployment, tmp_path) as sites:
            cars = Cars(area, sites)
            async with cars.listening():
                await cars.until_all_reach_all()
                yield cars


async def test_the_median_latency_is_the_sum_of_legs(cars: Cars) -> None:
    late = dict.fromkeys(itertools.permutations(SITES, 2), math.inf)
    for _ in range(10):
        cars.arrivals.clear()
        await asyncio.gather(*(cars.publish(site, 40) for site in SITES))
        for pair in late:
            median = statistics.median(arrival.late for arrival in await cars.arrived(*pair, 40))
            assert median >= legs(*pair)
            # A busy machine only ever adds to it: the best of some rounds counts.
            late[pair] = min(late[pair], median)
        if all(is_close(median, legs(*pair)) for pair, median in late.items()):
            return
    pytest.fail(f"latency is not the sum of legs within 2 ms: {late}")


async def test_a_cut_link_stops_delivery_between_these_two_only_and_heals(cars: Cars) -> None:
    cars.area.cut("a", "b")
    await asyncio.gather(*(cars.publish(site, 20) for site in SITES))
    for pair in [("a", "c"), ("c", "a"), ("b", "c"), ("c", "b"), ("a", "a"), ("b", "b")]:
        await cars.arrived(*pair, 20)
    assert not cars.arrivals["a", "b"]
    assert not cars.arrivals["b", "a"]
    cars.area.heal("a", "b")
    # TCP sends again what the brokers had handed to it; what comes next passes as before.
    await cars.arrived("a", "b", 20)
    await cars.arrived("b", "a", 20)
    cars.arrivals.clear()
    await asyncio.gather(cars.publish("a", 20), cars.publish("b", 20))
    await cars.arrived("a", "b", 20)
    await cars.arrived("b", "a", 20)


async def test_a_delay_change_shows_within_a_second(cars: Cars) -> None:
    publishing = asyncio.create_task(cars.publish("a", 200))
    await cars.arrived("a", "b", 20)
    changed = time.perf_counter()
    cars.area.set("a", "b", delay_ms=60.0)
    await publishing
    arrivals = await cars.arrived("a", "b", 200)
    before = min(arrival.late for arrival in arrivals if arrival.sent < changed - 0.02)
    after = min(arrival.late for arrival in arrivals if arrival.sent > changed + 1.0)
    assert is_close(before, legs("a", "b"))
    assert is_close(after, legs("a", "b") + 50.0)
