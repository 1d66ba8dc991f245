"""ePulsar, Fig. 7: downtime of clients and time per topic when topics migrate, on an emulated wide area.

Real sites, a real coordinator and real clients; the baselines are what the paper compares with. A client that breaks
before it makes leaves its site and then connects to the next one, whose address it was told (ePulsar's workflow) or has
to ask the coordinator for (Pulsar's). One executor is Pulsar's sequential migration.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.coordinator.executor.executor import Executor
from nearcast.coordinator.leadership import Coordinator
from nearcast.coordinator.moves import ClientMove, TopicMove
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import NearcastError
from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict
from nearcast.lab.experiments.migrating_devices import Device, DeviceCrowd
from nearcast.lab.wan import call_at, from_rtts, missing_right, sites_at, wide_area
from nearcast.nats.connection import open_connection
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nearcast.coordinator.leader import Leader
    from nearcast.lab.experiments.experiment import Point, Row, Task
    from nearcast.lab.experiments.results import Results

__all__ = ["EXPERIMENTS"]

NEAR_RTT, LIMIT, SETTLE = 10.0, 120.0, 2.0  # between clients and sites, ms; of any wait, s; between two measurements, s
EXECUTORS = (1, 4, 16)
OURS, TOLD, LOOKED_UP = "make before break", "break, address told", "break, address looked up"


def measure_migration(task: Task) -> Iterable[Row]:
    """Fig. 7: every way of moving the clients, then every number of executors for the topics."""
    return asyncio.run(_measure(int(task.number("topics")), task.number("one_way_ms")))


async def _measure(topics: int, one_way_ms: float) -> list[Row]:
    far = 2 * one_way_ms
    rtts = {
        ("cloud", "west"): far, ("cloud", "east"): far, ("west", "east"): far,
        ("crowd", "cloud"): far, ("crowd", "west"): NEAR_RTT, ("crowd", "east"): NEAR_RTT,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="nearcast-") as temporary:
        folder = Path(temporary)
        async with wide_area(from_rtts(rtts)) as area:
            (folder / "store").mkdir()
            sites = (
                SiteSpec("cloud", "cloud", host=area.address("cloud"), store=StoreSpec(folder / "store")),
                *(SiteSpec(name, host=area.address(name)) for name in ("west", "east")),
            )
            specs = tuple(TopicSpec(f"mig.{n}", ("west",)) for n in range(topics))
            echo = ("nearcast.lab.scenarios.echo",)
            deployment = Deployment(sites, specs, echo, report_seconds=2.0, insecure=True)
            urls = {site.name: site.url for site in sites}
            async with sites_at(area, deployment, folder / "run"):
                crowd = DeviceCrowd([Device(n, max(0.05, topics / 512), urls) for n in range(topics)])
                led = threading.Event()
                clients = asyncio.create_task(call_at(area, "crowd", lambda: crowd.run(led)))
                try:
                    return await call_at(area, "cloud", lambda: _drive(urls["cloud"], crowd, led))
                finally:
                    crowd.stop()
                    led.set()
                    await clients


async def _drive(url: str, crowd: DeviceCrowd, led: threading.Event) -> list[Row]:
    """At the cloud: lead, then move everything to and fro."""
    connection = await open_connection([url], name="coordinator", timeout=LIMIT / 4)
    settings = CoordinatorSettings(period=2.0, automatic=False, site_lost_after=LIMIT)
    coordinator = Coordinator(connection, "cloud", settings)
    running = asyncio.create_task(coordinator.run())
    try:
        async with asyncio.timeout(LIMIT):
            await coordinator.leading.wait()
        leader = coordinator.leader
        assert leader is not None
        await _until(lambda: len(leader.monitor.reports) >= 3)
        led.set()
        await _until(crowd.open.is_set)
        await _until(lambda: len(leader.registry.clients) >= len(crowd.devices))

        def executor(at_once: int) -> Executor:
            changed = msgspec.structs.replace(settings, moves_at_once=at_once)
            return Executor(leader.registry, connection, changed, coordinator.term, leader.monitor.leases)

        downtimes = await _downtimes(coordinator, leader, crowd)
        return [*downtimes, *await _topic_times(coordinator, leader, crowd, executor)]
    finally:
        await cancel_and_wait(running)
        await connection.close()


async def _downtimes(coordinator: Coordinator, leader: Leader, crowd: DeviceCrowd) -> list[Row]:
    """Fig. 7a: the longest gap of every client beyond the one that it has while nothing moves."""

    async def move(here: str, there: str) -> None:
        moves = [ClientMove(coordinator.term.next_move_id(), d.name, here, there) for d in crowd.devices]
        await _move_all(leader.executor, moves, "clients")

    async def settle_in(site: str) -> None:
        await _until(lambda: all(device.name in leader.registry.clients for device in crowd.devices))
        homes = {d.name: leader.registry.clients[d.name].home for d in crowd.devices}
        moves = [
            ClientMove(coordinator.term.next_move_id(), name, home, site)
            for name, home in homes.items()
            if home != site
        ]
        await leader.executor.run(moves)
        await asyncio.sleep(SETTLE)
        gc.collect()  # everything is in this one process: a full collection stops all of it for a while
        gc.freeze()

    async def gaps(act: Callable[[], Any]) -> list[float]:
        began = time.perf_counter()
        await act()
        await asyncio.sleep(SETTLE / 2)
        return [device.longest_gap(began, time.perf_counter()) for device in crowd.devices]

    await settle_in("west")
    still = await gaps(lambda: asyncio.sleep(SETTLE))
    found = {OURS: await gaps(lambda: move("west", "east"))}
    for name, site in ((LOOKED_UP, None), (TOLD, "west")):  # those who were told register no more
        await settle_in("east")
        found[name] = await gaps(partial(crowd.break_then_make, site))
    rows: list[Row] = []
    for name, moved in found.items():
        downtime = np.maximum(np.array(moved) - np.array(still), 0.0)
        rows.append(
            {
                "panel": "clients", "method": name, "gap_ms": float(np.median(moved)),
                "downtime_ms": float(np.median(downtime)), "still_ms": float(np.median(still)),
            }
        )  # fmt: skip
    return rows


async def _topic_times(
    coordinator: Coordinator, leader: Leader, crowd: DeviceCrowd, executor_of: Callable[[int], Executor]
) -> list[Row]:
    """Fig. 7b: all topics to the other site, with each number of executors."""
    rows: list[Row] = []
    here, there = "west", "east"
    for executors in EXECUTORS:
        executor = executor_of(executors)
        began = time.perf_counter()
        before, after = ((WorkerId(site, "worker-0"),) for site in (here, there))
        epochs = {d.topic: leader.registry.topics[d.topic].epoch for d in crowd.devices}
        moves = [TopicMove(coordinator.term.next_move_id(), t, e, before, after) for t, e in epochs.items()]
        await _move_all(executor, moves, "topics")
        took = 1000 * (time.perf_counter() - began)
        each = [1000 * done.seconds for done in executor.history.finished]
        rows.append(
            {
                "panel": "topics", "method": f"{executors} executor{'s' if executors > 1 else ''}",
                "per_topic_ms": took / len(moves), "one_move_ms": float(np.median(each)),
            }
        )  # fmt: skip
        here, there = there, here
        await asyncio.sleep(SETTLE)
    return rows


async def _move_all(executor: Executor, moves: Sequence[ClientMove | TopicMove], what: str) -> None:
    finishes = await executor.run(moves)
    if failed := [finish for finish in finishes if finish.outcome != "done"]:
        raise NearcastError(f"{len(failed)} of {len(moves)} {what} were not moved: {failed[0]}")


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - what is waited for happens elsewhere
            await asyncio.sleep(0.1)


def _points(quick: bool) -> list[Point]:
    """The wide area's latency is varied with most topics, the number of topics at 40 ms."""
    ways, most, fewer = ((10.0, 40.0), 16, (4,)) if quick else ((10.0, 40.0, 80.0), 128, (16, 64))
    by_topics: list[Point] = [{"varied": "topics", "one_way_ms": 40.0, "topics": float(n)} for n in fewer]
    return by_topics + [{"varied": "latency", "one_way_ms": way, "topics": float(most)} for way in ways]


def _claims(results: Results) -> list[Claim]:
    ways = sorted(float(w) for w in results.values("one_way_ms"))
    most = max(float(n) for n in results.values("topics"))
    at = results.where(varied="latency")
    down = {m: [at.mean("downtime_ms", method=m, one_way_ms=w) for w in ways] for m in (OURS, TOLD, LOOKED_UP)}
    lower = all(ours.high < other.low for ours, other in zip(down[OURS], down[LOOKED_UP], strict=True))
    saved = [other.mean - ours.mean for ours, other in zip(down[OURS], down[LOOKED_UP], strict=True)]
    most_at_first = down[LOOKED_UP][0].high - down[OURS][0].low
    least_at_last = down[LOOKED_UP][-1].low - down[OURS][-1].high
    forty = at.where(one_way_ms=40.0)
    one, sixteen = (forty.mean("per_topic_ms", method=m) for m in ("1 executor", "16 executors"))
    move = forty.mean("one_move_ms", method="1 executor")
    return [
        Claim(
            "Clients have a shorter downtime than with Pulsar's workflow.",
            "Fig. 7a, significantly lower",
            "; ".join(
                f"{way:g} ms one way: {down[OURS][i].text(0)} ms, told {down[TOLD][i].text(0)} ms, looked up "
                f"{down[LOOKED_UP][i].text(0)} ms"
                for i, way in enumerate(ways)
            ),
            verdict(lower),
            "Downtime is the longest gap in a client's receipts beyond its longest while nothing moves (median over "
            "clients): ours is subscribed at the new site before it leaves the old one. Ours moves clients by 16 at a "
            "time, the baselines all at once.",
        ),
        Claim(
            "The gain grows with the latency of the wide area.",
            "Fig. 7a",
            ", ".join(f"{gain:.0f} ms at {way:g} ms" for gain, way in zip(saved, ways, strict=True)),
            verdict(least_at_last > most_at_first),
            "Connecting and looking up take processor time, which on a busy machine outweighs the round trips.",
        ),
        Claim(
            "Concurrent executors lower the time per topic; sequential migration takes all round trips each.",
            "Fig. 7b, 40 ms one way",
            f"{most:g} topics: {one.text(0, ' ms')} with 1 executor, {sixteen.text(0, ' ms')} with 16 "
            f"(one move: {move.text(0, ' ms')} of which 240 ms are three round trips; lower: to a third)",
            verdict(sixteen.high < one.low / 3),
        ),
    ]


EXPERIMENTS = (
    Experiment(
        name="migration",
        paper="002",
        figure="Fig. 7",
        title="Downtime and time per topic of migrations",
        about="Two sites and a coordinator on an emulated wide area, a client per topic; all move from one site to the "
        "other. Left: clients, 16 at a time. Right: topics, with 1 (sequential), 4 and 16 executors, the time for all "
        "divided by their number. Everything runs in one process beside the brokers and workers.",
        points=_points,
        seeds=(1, 3),
        measure=measure_migration,
        claims=_claims,
        panels=[
            Panel(
                "one_way_ms", "downtime_ms", "one way between sites and coordinator (ms)", "median downtime (ms)",
                where={"panel": "clients", "varied": "latency"},
            ),
            Panel(
                "topics", "per_topic_ms", "topics that migrate", "time per topic (ms), 40 ms one way",
                where={"panel": "topics", "one_way_ms": 40.0},
            ),
        ],
        parallel=False,
        missing=missing_right,
    ),
)  # fmt: skip
