"""The data cluster as it runs: time from publication to notification, and the driver's memory."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import psutil
from benchmarks.cluster_workload import (
    add_channel,
    cluster_is_ready,
    cluster_process,
    metrics,
    reports,
    two_sites,
    until,
    where_time_goes,
)
from benchmarks.measure import Figure

import nearcast
from nearcast.client.channels import ChannelMember
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.stamp import header_block
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def latency_at(
    devices: Connection, rate: int, seconds: float, inbox: list[float], rng: random.Random
) -> list[float]:
    """Milliseconds from publication to notification at a rate.

    Devices publish without waiting for acknowledgements, so that they are not measured; every report must arrive.
    """
    inbox.clear()
    start, sent, run = time.perf_counter(), 0, rng.randrange(2**40)
    while (now := time.perf_counter() - start) < seconds:
        for record in reports(min(int(now * rate) - sent, 500), rng):
            payload = msgspec.json.encode({**record, "sent": time.time()})
            devices.send(subjects.feed("reports"), header_block(f"{run}:{sent}".encode()), payload)
            sent += 1
        await asyncio.sleep(0.005)
    await until(lambda: len(inbox) >= sent)
    assert len(inbox) == sent, f"{sent} reports, {len(inbox)} notifications"
    return sorted(inbox)


async def change_subscriptions(connection: Connection, cloud: str, per_second: float, numbers: Iterator[int]) -> None:
    """Subscriptions that no report matches come and go, of a site that has no agent. numbers: none comes twice."""
    catalog = Catalog(connection, cloud)
    for n in numbers:
        await catalog.subscribe("of_kind_in_area", f"x{n}", "nowhere", {"kind": f"x{n}", "area": "none"})
        if n % 2:
            await catalog.unsubscribe("of_kind_in_area", f"x{n - 1}", "nowhere")
        await asyncio.sleep(1 / per_second)


def latency(spark: SparkSession) -> Iterator[Figure]:
    """Publish → enriched notification with 10,000 subscriptions: validation, enrichment and keeping included."""
    rng = random.Random(2)
    inbox: list[float] = []

    def took(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        now = time.time()
        inbox.extend((now - row["sent"]) * 1000 for row in msgspec.json.decode(payload)["rows"])

    async def run() -> list[Figure]:
        found = []
        async with two_sites() as (deployment, folder):
            await add_channel(deployment, folder, spark)
            spark.stop()  # the data cluster has its own session
            devices = await open_connection([deployment.sites[0].url], name="devices")
            people = await open_connection([deployment.sites[0].url], name="people")
            await people.subscribe_raw(subjects.channel_results("of_kind_in_area", "*"), took)
            # One connection stands for 10,000 clients: what their SDKs do besides would be measured, too.
            member = ChannelMember("people", people, {})
            try:
                values = [{"kind": f"k{n % 100}", "area": f"a{n // 100}"} for n in range(10_000)]
                by_rate: dict[int, tuple[list[float], str]] = {}
                with cluster_process(deployment, folder) as (_, port):
                    await until(lambda: cluster_is_ready(folder))
                    for start in range(0, 10_000, 500):
                        some = values[start : start + 500]
                        await asyncio.gather(*(member.join("of_kind_in_area", each) for each in some))
                    await latency_at(devices, 1000, 60, inbox, rng)  # warm up the JVM
                    for rate in (100, 1000, 5000):
                        before = metrics(port)
                        ms = await latency_at(devices, rate, 20, inbox, rng)
                        by_rate[rate] = ms, where_time_goes(before, metrics(port))
                    changed: list[float] = []
                    unchanged: list[float] = []
                    numbers, cloud = itertools.count(), deployment.cloud().name
                    for _ in range(3):  # in turn, so that a busy moment of the machine does not hit one alone
                        changes = asyncio.create_task(change_subscriptions(devices, cloud, 10, numbers))
                        changed += await latency_at(devices, 100, 10, inbox, rng)
                        await cancel_and_wait(changes)
                        unchanged += await latency_at(devices, 100, 10, inbox, rng)
                p90s = [sorted(ms)[int(len(ms) * 0.9)] for ms in (changed, unchanged)]
                found.append(
                    Figure(
                        "p90 at 100 reports/s while ten subscriptions a second come or go",
                        f"{p90s[0]:.0f} ms",
                        f"{p90s[1]:.0f} ms without changes, three times in turn",
                        p90s[0] / p90s[1],
                        "≤ 1.2",
                    )
                )
                for rate, (ms, stages) in by_rate.items():
                    p50, p90, p99 = (ms[int(len(ms) * q)] for q in (0.5, 0.9, 0.99))
                    prototype = {100: 193, 1000: 196, 5000: 306}[rate]
                    found.append(
                        Figure(
                            f"publish → notification at {rate:,} reports/s, p50 / p90 / p99 ({stages})",
                            f"{p50:.0f} / {p90:.0f} / {p99:.0f} ms",
                            f"p90 {prototype} ms, a prototype on idle cores",
                            prototype / p90,
                            "≥ 1.0",
                        )
                    )
            finally:
                await member.close()
                await people.close()
                await devices.close()
        return found

    yield from asyncio.run(run())


def memory(spark: SparkSession, minutes: float = 3.0) -> Iterator[Figure]:
    """The driver's memory, minute by minute, while records stream in as fast as they are taken and answer a channel."""

    def megabytes(pid: int) -> tuple[float, float]:
        """Of Python and of Java."""
        process = psutil.Process(pid)
        java = [child.memory_info().rss for child in process.children(recursive=True) if "java" in child.name()]
        return process.memory_info().rss / 2**20, sum(java) / 2**20

    async def run() -> tuple[list[tuple[float, float]], int]:
        rng = random.Random(3)
        seen: list[tuple[float, float]] = []
        async with two_sites() as (deployment, folder):
            await add_channel(deployment, folder, spark)
            spark.stop()
            async with nearcast.connect(deployment.sites[0].url) as client:
                got = [0]

                def took(message: nearcast.Message) -> None:
                    got[0] += len(message.data["rows"])

                for n in range(1000):
                    values = {"kind": f"k{n % 100}", "area": f"a{n // 10}"}
                    await client.subscribe(channel="of_kind_in_area", params=values, callback=took)
                with cluster_process(deployment, folder) as (pid, port):
                    await until(lambda: _answers(port))
                    start, fed = time.monotonic(), 0
                    while time.monotonic() - start < 60 * minutes:
                        await asyncio.gather(*(client.feed("reports", r, timeout=60) for r in reports(1000, rng)))
                        fed += 1000
                        await until(lambda fed=fed: fed - taken(port) < 20_000)  # type: ignore[misc]
                        if time.monotonic() - start > 60 * (len(seen) + 1):
                            seen.append(megabytes(pid))
                            print(
                                f"{len(seen)} min: Python {seen[-1][0]:.0f} MB, Java {seen[-1][1]:.0f} MB", flush=True
                            )
                return seen, fed

    def taken(port: int) -> float:
        return metrics(port).get("nearcast_cluster_rows_total{}", 0.0)

    seen, fed = asyncio.run(run())
    third = max(len(seen) // 3, 1)
    for n, what in enumerate(("Python", "Java")):
        first, last = (statistics.median(row[n] for row in some) for some in (seen[third:][:third], seen[-third:]))
        yield Figure(
            f"driver's memory, {what}, last third of {minutes:g} minutes over the second ({fed:,} records)",
            f"{last:,.0f} MB", f"{first:,.0f} MB", last / first, "about 1",
        )  # fmt: skip


def _answers(port: int) -> bool:
    try:
        return bool(metrics(port)) or True
    except OSError:
        return False
