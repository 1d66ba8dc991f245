"""Records into a dataset's table by the executors' lane, beside plain Spark that reads the same stream."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
from benchmarks.cluster_workload import REPORTS, add_channel, reports, two_sites, until
from benchmarks.measure import Figure, timed

from nearcast.cluster.driver import running_driver
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.nats_source.source import NatsSource
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import open_connection

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from nearcast.domain.deployment import Deployment

RECORDS = 300_000
_SUBSCRIPTIONS = 1_000


async def _fill(deployment: Deployment, invalid_every: int) -> None:
    rng = random.Random(5)
    some = [json.dumps(record).encode() for record in reports(10_000, rng)]
    rows = [("fed.reports", "", b"not json" if invalid_every and n % invalid_every == 0 else some[n % 10_000])
            for n in range(RECORDS)]  # fmt: skip
    await asyncio.to_thread(connection_to([deployment.cloud().store_url]).publish, rows)


async def _subscribe(deployment: Deployment) -> None:
    """Subscriptions that match one record in ten, of a site that has no agent: nobody receives the results."""
    connection = await open_connection([deployment.cloud().url], name="benchmark")
    catalog = Catalog(connection, deployment.cloud().name)
    for n in range(_SUBSCRIPTIONS):
        await catalog.subscribe("of_kind_in_area", f"k{n}", "nowhere", {"kind": f"k{n % 100}", "area": f"a{n // 100}"})
    await catalog.renew("nowhere")
    await connection.close()


def _plain(spark: SparkSession, deployment: Deployment, folder: Path) -> None:
    reader = spark.read.format("nats").option("servers", deployment.cloud().store_url)
    reader = reader.option("stream", subjects.feed_stream("reports")).option("partitions", 2)
    frame = reader.option("valueSchema", REPORTS.schema).load().where("error IS NULL")
    frame.select("value.*", "sequence", "time").write.mode("overwrite").parquet(str(folder / "plain"))


async def _run(spark: SparkSession, *, channel: bool, invalid_every: int = 0) -> tuple[float, float, float, float]:
    """Seconds of plain Spark; seconds, CPU seconds of the driver's Python, and of all processes, until all is in."""
    async with two_sites() as (deployment, folder):
        await add_channel(deployment, folder, spark)
        if channel:
            await _subscribe(deployment)
        await _fill(deployment, invalid_every)
        spark.dataSource.register(NatsSource)
        await asyncio.to_thread(_plain, spark, deployment, folder)  # starts the workers
        _, plain = await asyncio.to_thread(timed, lambda: _plain(spark, deployment, folder))
        process, before = psutil.Process(), psutil.Process().cpu_times()
        everything, start = _all_cpu(process), time.perf_counter()
        async with running_driver(spark, deployment) as driver:
            await until(lambda: driver.position("reports") >= RECORDS)
            seconds, after = time.perf_counter() - start, process.cpu_times()
            own = after.user + after.system - before.user - before.system
            return plain, seconds, own, _all_cpu(process) - everything


def _all_cpu(process: psutil.Process) -> float:
    """Of this process and those it has started: Java, and Python's workers. The servers are left out."""
    found = 0.0
    for one in [process, *process.children(recursive=True)]:
        if "nats" not in one.name():
            found += sum(one.cpu_times()[:2])
    return found


def ingest(spark: SparkSession) -> Iterator[Figure]:
    """Records into the table; the driver's CPU; and what invalid records cost."""
    bare = asyncio.run(_run(spark, channel=False))
    million = RECORDS / 1e6
    into = "plain Spark to Parquet"
    yield Figure(
        f"{RECORDS:,} records into the table, no channel; driver's Python {bare[2] / million:.2f} CPU-s per million",
        f"{RECORDS / bare[1]:,.0f}/s", f"{RECORDS / bare[0]:,.0f}/s, {into}", bare[0] / bare[1], "≥ 0.7",
    )  # fmt: skip
    full = asyncio.run(_run(spark, channel=True))
    yield Figure(
        f"the same with {_SUBSCRIPTIONS:,} subscriptions, one record in ten matches; driver's Python "
        f"{full[2] / million:.2f} CPU-s per million",
        f"{RECORDS / full[1]:,.0f}/s", f"{RECORDS / full[0]:,.0f}/s, {into}", full[0] / full[1], "≥ 0.7",
    )  # fmt: skip
    invalid = asyncio.run(_run(spark, channel=False, invalid_every=100))
    yield Figure(
        "CPU of all processes with 1 % invalid records, over none",
        f"{invalid[3]:.1f} s", f"{bare[3]:.1f} s", invalid[3] / bare[3], "≤ 1.1",
    )  # fmt: skip
