"""Three brokers joined by gateways, 10, 25 and 40 ms apart on an emulated wide area, a client near each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import pytest

from nearcast.lab.wan import Area, Topology, call_at, from_rtts, missing_right, process_at, wide_area

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client
    from nats.aio.msg import Msg

pytestmark = pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason))

SITES = ("a", "b", "c")
BETWEEN = {("a", "b"): 10.0, ("b", "c"): 25.0, ("a", "c"): 40.0}
ACCESS = {"a": 3.0, "b": 2.0, "c": 5.0}
CLIENT_PORT, GATEWAY_PORT = 4222, 7222
NATS_SERVER = str(Path(sys.executable).with_name("nats-server"))


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


@contextlib.asynccontextmanager
async def three_brokers(folder: Path) -> AsyncIterator[Area]:
    async with contextlib.AsyncExitStack() as stack:
        area = await stack.enter_async_context(wide_area(topology()))
        gateways = [{"name": site, "url": f"nats://{area.address(site)}:{GATEWAY_PORT}"} for site in SITES]
        for site in SITES:
            settings = {
                "server_name": site,
                "listen": f"{area.address(site)}:{CLIENT_PORT}",
                "gateway": {
                    "name": site,
                    "listen": f"{area.address(site)}:{GATEWAY_PORT}",
                    "gateways": [gateway for gateway in gateways if gateway["name"] != site],
                },
            }
            (config := folder / f"{site}.conf").write_text(json.dumps(settings))
            log = stack.enter_context((folder / f"{site}.log").open("wb"))
            await stack.enter_async_context(
                process_at(area, site, NATS_SERVER, "-c", str(config), output=log)
            )
        yield area


@dataclass(frozen=True)
class Arrival:
    """A message that came: when it was sent (s) and how long it took (ms)."""

    sent: float
    late: float


class Cars:
    """A subscriber near every site, publishers that send the time, and what arrived, by source and site."""

    def __init__(self, area: Area) -> None:
        self.area = area
        self.arrivals: dict[tuple[str, str], list[Arrival]] = defaultdict(list)

    @contextlib.asynccontextmanager
    async def connected(self, site: str) -> AsyncIterator[Client]:
        address = f"nats://{self.area.address(site)}:{CLIENT_PORT}"
        connection = await nats.connect(address, connect_timeout=1, max_reconnect_attempts=50)
        try:
            yield connection
        finally:
            await connection.close()

    async def listen(self, site: str) -> None:
        """Note what arrives near a site, until cancelled."""

        async def received(message: Msg) -> None:
            sent = float(message.data)
            late = 1000 * (time.perf_counter() - sent)
            self.arrivals[message.subject, site].append(Arrival(sent, late))

        async with self.connected(site) as connection:
            await connection.subscribe("*", cb=received)
            await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(call_at(self.area, car(site), partial(self.listen, site))) for site in SITES
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def publish(self, site: str, count: int) -> None:
        """Send from near a site, about 100 messages a second, until the broker has them all."""

        async def send() -> None:
            async with self.connected(site) as connection:
                for _ in range(count):
                    await connection.publish(site, str(time.perf_counter()).encode())
                    await connection.flush()
                    await asyncio.sleep(0.01)

        await call_at(self.area, car(site), send)

    async def arrived(self, source: str, destination: str, count: int) -> list[Arrival]:
        """So many messages, once they are there."""
        end = time.monotonic() + 20
        while len(self.arrivals[source, destination]) < count:
            assert time.monotonic() < end, (source, destination, len(self.arrivals[source, destination]))
            await asyncio.sleep(0.01)
        return self.arrivals[source, destination]

    async def until_all_reach_all(self) -> None:
        """Brokers found one another, and interest has spread."""
        end = time.monotonic() + 30
        while not all(self.arrivals[a, b] for a in SITES for b in SITES):
            assert time.monotonic() < end, self.arrivals
            await asyncio.gather(*(self.publish(site, 1) for site in SITES))
        # The last of them may still be on their way.
        await asyncio.sleep(2 * max(BETWEEN.values()) / 1000)
        self.arrivals.clear()


def is_sum_of_legs(arrivals: list[Arrival], expected_ms: float) -> bool:
    return expected_ms <= statistics.median(arrival.late for arrival in arrivals) <= expected_ms + 2.0


@pytest.fixture
async def cars(tmp_path: Path) -> AsyncIterator[Cars]:
    async with three_brokers(tmp_path) as area:
        cars = Cars(area)
        async with cars.listening():
            await cars.until_all_reach_all()
            yield cars


async def test_latency_is_the_sum_of_legs(cars: Cars) -> None:
    await asyncio.gather(*(cars.publish(site, 40) for site in SITES))
    for source in SITES:
        for destination in SITES:
            if source != destination:
                arrivals = await cars.arrived(source, destination, 40)
                assert is_sum_of_legs(arrivals, legs(source, destination)), (source, destination, arrivals)


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
    await cars.publish("a", 20)
    assert is_sum_of_legs(await cars.arrived("a", "b", 20), legs("a", "b"))


async def test_a_delay_change_shows_within_a_second(cars: Cars) -> None:
    publishing = asyncio.create_task(cars.publish("a", 200))
    await cars.arrived("a", "b", 20)
    changed = time.perf_counter()
    cars.area.set("a", "b", delay_ms=60.0)
    await publishing
    arrivals = await cars.arrived("a", "b", 200)
    before = [arrival for arrival in arrivals if arrival.sent < changed - 0.02]
    after = [arrival for arrival in arrivals if arrival.sent > changed + 1.0]
    assert is_sum_of_legs(before, legs("a", "b"))
    assert is_sum_of_legs(after, legs("a", "b") + 50.0)
