"""The control plane: python benchmarks/control_plane.py [migration] [once] [monitoring] [loop] [model]

migration needs the right to make network namespaces (root); the others do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
from benchmarks.control_plane_accuracy import model
from benchmarks.control_plane_choice import choice
from benchmarks.control_plane_model import loop, monitoring
from benchmarks.measure import Figure, print_table

import nearcast
from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.coordinator.executor.executor import Executor
from nearcast.coordinator.leader import Leader
from nearcast.coordinator.leadership import Coordinator
from nearcast.coordinator.moves import ClientMove, TopicMove
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.nats.connection import open_connection
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.site import run_sites

TOPICS, INTERVAL, ONE_WAY_MS = 128, 0.25, 40.0
PROCESSOR = """
from nearcast import processor

@processor(">", spool=10)
def echo(message, spool):
    return message.payload
"""


@contextlib.contextmanager
def folder_with_processor() -> Iterator[Path]:
    """A directory with the module `echoing`, which workers find."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "echoing.py").write_text(PROCESSOR)
        os.environ["PYTHONPATH"] = os.pathsep.join((name, os.environ.get("PYTHONPATH", "")))
        yield Path(name)


class Device:
    """A client with a topic of its own: it publishes at an interval and notes when messages come."""

    def __init__(self, number: int, coordinator: str) -> None:
        self.name, self.topic, self._coordinator = f"device{number}", f"mig.{number}", coordinator
        self.came: list[float] = []
        self.sent: list[str] = []
        self.sent_at: dict[str, float] = {}
        self.got: list[str] = []
        self.client: nearcast.Client | None = None

    async def open(self, url: str | None = None) -> None:
        if url is None:
            client = nearcast.connect(coordinator=self._coordinator, name=self.name, report_seconds=60, timeout=20)
        else:
            client = nearcast.connect(url, name=self.name, timeout=20)
        self.client = await client.__aenter__()
        await self.client.subscribe(self.topic, callback=self._note)

    def _note(self, message: nearcast.Message) -> None:
        self.came.append(time.perf_counter())
        self.got.append(message.id.partition(";")[0])

    async def publish(self, stop: threading.Event) -> None:
        await asyncio.sleep(hash(self.name) % 100 / 100 * INTERVAL)
        while not stop.is_set():
            with contextlib.suppress(nearcast.NearcastError, AssertionError):  # while it is between two homes
                if self.client is not None:
                    self.sent.append((await self.client.publish(self.topic, b"{}")).id)
                    self.sent_at[self.sent[-1]] = time.perf_counter()
            await asyncio.sleep(INTERVAL)

    async def break_then_make(self, url: str) -> None:
        """What clients did before: leave the old home, then connect to the new one."""
        assert self.client is not None
        old, self.client = self.client, None
        await old.__aexit__(None, None, None)
        await self.open(url)

    async def close(self) -> None:
        if self.client is not None:
            await self.client.__aexit__(None, None, None)

    def longest_gap(self, since: float, until: float) -> float:
        times = [since, *(at for at in self.came if since <= at <= until), until]
        return max(b - a for a, b in pairwise(times))

    def explain_gaps(self, since: float, until: float, limit: float) -> Iterator[str]:
        """Whether a late message was sent late or was long under way."""
        for n in range(1, len(self.came)):
            gap = self.came[n] - self.came[n - 1]
            if gap > limit and since <= self.came[n] <= until:
                sent = [self.sent_at.get(self.got[m], float("nan")) for m in (n - 1, n)]
                yield (
                    f"{self.name}: {1000 * gap:.0f} ms without a message, {self.came[n] - since:.2f} s into the moves; "
                    f"sent {1000 * (sent[1] - sent[0]):.0f} ms after the one before, "
                    f"under way {1000 * (self.came[n - 1] - sent[0]):.0f} and {1000 * (self.came[n] - sent[1]):.0f} ms"
                )


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what is waited for happens elsewhere
        await asyncio.sleep(0.1)


def migration() -> Iterable[Figure]:
    """128 topics with a client each, 40 ms one way between the coordinator and the sites."""
    return asyncio.run(_migration())


async def _migration() -> list[Figure]:
    from nearcast.lab.wan import from_rtts
    from nearcast.lab.wan.testing import call_at, sites_at, wide_area

    far, near = 2 * ONE_WAY_MS, 10.0
    rtts = {
        ("cloud", "west"): far, ("cloud", "east"): far, ("west", "east"): far,
        ("crowd", "cloud"): far, ("crowd", "west"): near, ("crowd", "east"): near,
    }  # fmt: skip
    with folder_with_processor() as folder:
        async with wide_area(from_rtts(rtts)) as area:
            specs = []
            for name in ("cloud", "west", "east"):
                store = None
                if name == "cloud":
                    (folder / name).mkdir()
                    store = StoreSpec(folder / name)
                kind = "cloud" if name == "cloud" else "edge"
                specs.append(SiteSpec(name, kind, host=area.address(name), store=store))  # type: ignore[arg-type]
            topics = tuple(TopicSpec(f"mig.{n}", ("west",)) for n in range(TOPICS))
            deployment = Deployment(tuple(specs), topics, ("echoing",), report_seconds=2.0, insecure=True)
            urls = {spec.name: spec.url for spec in specs}
            async with sites_at(area, deployment, folder / "run"):
                devices = [Device(n, urls["west"]) for n in range(TOPICS)]
                ready, stop, broke = threading.Event(), threading.Event(), threading.Event()
                span: list[float] = []
                crowd = asyncio.create_task(
                    call_at(area, "crowd", lambda: _crowd(devices, urls, ready, stop, broke, span))
                )
                try:
                    return await call_at(area, "cloud", lambda: _drive(urls, devices, ready, stop, broke, span))
                finally:
                    stop.set()
                    broke.set()
                    await crowd


async def _crowd(
    devices: list[Device],
    urls: dict[str, str],
    ready: threading.Event,
    stop: threading.Event,
    broke: threading.Event,
    span: list[float],
) -> None:
    await asyncio.to_thread(ready.wait)  # the coordinator is there
    ready.clear()
    for first in range(0, len(devices), 16):
        await asyncio.gather(*(device.open() for device in devices[first : first + 16]))
    tasks = [asyncio.create_task(device.publish(stop)) for device in devices]
    ready.set()
    await asyncio.to_thread(broke.wait)
    if not stop.is_set():
        began = time.perf_counter()
        await asyncio.gather(*(device.break_then_make(urls["west"]) for device in devices[:32]))
        await asyncio.sleep(1)
        span.extend((began, time.perf_counter()))
    await asyncio.to_thread(stop.wait)
    await asyncio.gather(*tasks)
    await asyncio.gather(*(device.close() for device in devices))


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


async def _drive(
    urls: dict[str, str],
    devices: list[Device],
    ready: threading.Event,
    stop: threading.Event,
    broke: threading.Event,
    span: list[float],
) -> list[Figure]:
    connection = await open_connection([urls["cloud"]], name="coordinator", timeout=20)
    settings = CoordinatorSettings(period=2.0, automatic=False, site_lost_after=120.0)
    coordinator = Coordinator(connection, "cloud", settings)
    running = asyncio.create_task(coordinator.run())
    leader, term = await _leading(coordinator), coordinator.term
    ready.set()
    await asyncio.sleep(0.5)
    await asyncio.to_thread(ready.wait)
    await _until(lambda: len(leader.registry.clients) >= TOPICS)
    _say(f"{TOPICS} clients are there")
    homes = dict.fromkeys((device.name for device in devices), "west")
    for device in devices:  # all begin at the west
        homes[device.name] = device.client.home if device.client else "west"
    away = [ClientMove(term.next_move_id(), name, home, "west") for name, home in homes.items() if home != "west"]
    await leader.executor.run(away)
    await asyncio.sleep(2)

    figures = []
    floor = 3 * 2 * ONE_WAY_MS
    here, there = "west", "east"
    for executors, count in ((1, 24), (4, 64), (16, TOPICS)):
        at_once = msgspec.structs.replace(settings, moves_at_once=executors)
        executor = Executor(leader.registry, connection, at_once, term, leader.monitor.leases)
        began = time.perf_counter()
        moves = [_topic_move(coordinator, f"mig.{n}", here, there) for n in range(count)]
        await executor.run(moves)
        took = time.perf_counter() - began
        _say(f"{count} topics moved with {executors} executors in {took:.1f} s")
        seconds = [done.seconds for done in executor.history.finished if done.outcome == "done"]
        median = 1000 * statistics.median(seconds)
        figures.append(
            Figure(
                f"per-topic migration, median, {executors} executors ({len(seconds)} of {count} done in {took:.1f} s)",
                f"{median:.0f} ms", f"3 wide-area round trips = {floor:.0f} ms", median / floor, "near 1",
            )
        )  # fmt: skip
        await asyncio.sleep(4)
        await executor.run([_topic_move(coordinator, f"mig.{n}", there, here) for n in range(count)])
        await asyncio.sleep(4)

    # All clients, agents and the coordinator are in this one process: a full collection of its garbage stops them all
    # for 100 ms. What is there now is not looked at again, as if each were a device of its own.
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    await asyncio.sleep(4)
    quiet = [1000 * device.longest_gap(began, time.perf_counter()) for device in devices]
    # Topics and clients together, as the latency goal does it.
    executor = Executor(leader.registry, connection, settings, term, leader.monitor.leases)
    began = time.perf_counter()
    rehome = [ClientMove(term.next_move_id(), device.name, "west", "east") for device in devices]
    outcomes = await executor.run(
        [*(_topic_move(coordinator, device.topic, "west", "east") for device in devices), *rehome]
    )
    await asyncio.sleep(2)
    ended = time.perf_counter()
    moved = sum(finish.outcome == "done" for finish in outcomes[len(devices) :])
    gaps = [1000 * device.longest_gap(began, ended) for device in devices]
    for device in devices:
        for sentence in device.explain_gaps(began, ended, 2 * INTERVAL):
            _say(sentence)
    sent = [(device, device.sent[:]) for device in devices]
    await asyncio.sleep(2)
    lost = sum(len(set(ids) - set(device.got)) for device, ids in sent)
    repeated = sum(len(device.got) - len(set(device.got)) for device in devices)
    broke.set()
    await _until(lambda: len(span) == 2)
    await asyncio.sleep(0.5)
    stop.set()
    broken = [1000 * device.longest_gap(*span) for device in devices[:32]]
    figures.append(
        Figure(
            f"longest gap in receipt, median of {moved} clients moved with topics, {1 / INTERVAL:g} messages/s each",
            f"{statistics.median(gaps):.0f} ms", f"break before make: {statistics.median(broken):.0f} ms",
            statistics.median(gaps) / statistics.median(broken), f"at most {2000 * INTERVAL:.0f} ms",
        )
    )  # fmt: skip
    late = sum(gap > 2000 * INTERVAL for gap in gaps)
    still = sum(gap > 2000 * INTERVAL for gap in quiet)
    before = (
        f"break before make: {sum(gap > 2000 * INTERVAL for gap in broken)} of {len(broken)}; nothing moving: {still}"
    )
    figures.append(Figure("clients with a gap above twice the interval", str(late), before, None, "0"))
    total = sum(len(ids) for _, ids in sent)
    figures.append(
        Figure(f"of {total} messages in all these moves", f"{lost} lost, {repeated} repeated", "", None, "0, 0")
    )
    await cancel_and_wait(running)
    await connection.close()
    return figures


async def _leading(coordinator: Coordinator) -> Leader:
    """The leader, once it leads and has heard from all three sites."""
    await asyncio.wait_for(coordinator.leading.wait(), 60)
    leader = coordinator.leader
    assert leader is not None
    await _until(lambda: len(leader.monitor.reports) >= 3)
    return leader


def _topic_move(coordinator: Coordinator, topic: str, here: str, there: str) -> TopicMove:
    assert coordinator.leader is not None
    epoch = coordinator.leader.registry.topics[topic].epoch
    before, after = WorkerId(here, "worker-0"), WorkerId(there, "worker-0")
    return TopicMove(coordinator.term.next_move_id(), topic, epoch, (before,), (after,))


def once() -> Iterable[Figure]:
    """20 migrations of a processed topic, and of all clients of a plain one, under 2,000 messages/s."""
    return asyncio.run(_once())


@contextlib.asynccontextmanager
async def _three_sites(*topics: TopicSpec) -> AsyncIterator[tuple[dict[str, str], Coordinator]]:
    with folder_with_processor() as folder:
        specs = []
        for n, name in enumerate(("tokyo", "osaka", "cloud")):
            (folder / name).mkdir()
            specs.append(SiteSpec(name, port=17100 + 10 * n, store=StoreSpec(folder / name)))
        deployment = Deployment(tuple(specs), topics, ("echoing",), report_seconds=0.5)
        async with run_sites(deployment, folder / "run"):
            urls = {spec.name: spec.url for spec in specs}
            connection = await open_connection([urls["cloud"]], name="coordinator", timeout=20)
            coordinator = Coordinator(connection, "cloud", CoordinatorSettings(period=1.0, automatic=False))
            running = asyncio.create_task(coordinator.run())
            try:
                await _leading(coordinator)
                yield urls, coordinator
            finally:
                await cancel_and_wait(running)
                await connection.close()


def _noting(ids: list[str]) -> Callable[[nearcast.Message], None]:
    return lambda message: ids.append(message.id.partition(";")[0])


async def _once() -> list[Figure]:
    async with _three_sites(TopicSpec("gps", ("tokyo",))) as (urls, coordinator):
        leader, term = await _leading(coordinator), coordinator.term
        options = {"coordinator": urls["cloud"], "report_seconds": 1.0}
        async with (
            nearcast.connect(name="writer", **options) as writer,  # type: ignore[arg-type]
            nearcast.connect(name="reader", **options) as reader,  # type: ignore[arg-type]
        ):
            got: dict[str, list[str]] = {"gps": [], "plain": []}
            sent: dict[str, list[str]] = {"gps": [], "plain": []}
            for topic, ids in got.items():
                await reader.subscribe(topic, callback=_noting(ids))
            going = True

            async def publish() -> None:
                started, n = time.perf_counter(), 0
                while going:
                    while n < 2000 * (time.perf_counter() - started):
                        for topic in sent:
                            sent[topic].append((await writer.publish(topic, b"{}")).id)
                            n += 1
                    await asyncio.sleep(0.005)

            task = asyncio.create_task(publish())
            await asyncio.sleep(1)
            ring, began = ["tokyo", "osaka", "cloud"], time.perf_counter()
            for n in range(20):
                here, there = ring[n % 3], ring[(n + 1) % 3]
                moves: list[TopicMove | ClientMove] = [_topic_move(coordinator, "gps", here, there)]
                moves += [
                    ClientMove(term.next_move_id(), client.name, client.home, there)
                    for client in (writer, reader) if client.home != there
                ]  # fmt: skip
                outcomes = await leader.executor.run(moves)
                problems = [finish.reason for finish in outcomes if finish.reason]
                assert not problems, problems
                await asyncio.sleep(1)
            took = time.perf_counter() - began
            going = False
            await task
            await asyncio.sleep(3)
    figures = []
    for topic, kind in (("gps", "processed"), ("plain", "plain")):
        counts = Counter(got[topic])
        lost = sum(identity not in counts for identity in sent[topic])
        repeated = sum(count > 1 for count in counts.values())
        rate = len(sent[topic]) / (took + 1)
        what = f"20 migrations, {kind} topic, {len(sent[topic])} messages ({rate:.0f}/s of this topic)"
        figures.append(Figure(what, f"{lost} lost, {repeated} repeated", "", None, "0, 0"))
    return figures


PARTS = {"choice": choice, "migration": migration, "once": once, "monitoring": monitoring, "loop": loop, "model": model}


def main(wanted: list[str]) -> None:
    """Run the parts that are asked for, or all."""
    for name in wanted or PARTS:
        part = PARTS[name]
        print_table((part.__doc__ or name).splitlines()[0], part())


if __name__ == "__main__":
    main(sys.argv[1:])
