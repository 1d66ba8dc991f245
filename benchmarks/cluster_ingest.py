"""Records into a dataset's table by the executors' lane, beside plain Spark that reads the same stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple

import psutil
from benchmarks.cluster_workload import (
    REPORTS,
    add_channel,
    cluster_process,
    metrics,
    reports,
    two_sites,
    until,
    where_time_goes,
)
from benchmarks.measure import Figure, timed
from deltalake import DeltaTable

from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.nats_source.source import NatsSource
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import open_connection
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from nearcast.domain.deployment import Deployment

RECORDS, _WARM = 1_000_000, 300_000
_SUBSCRIPTIONS = 1_000


async def _fill(deployment: Deployment, invalid_every: int) -> None:
    rng = random.Random(5)
    some = [json.dumps(record).encode() for record in reports(10_000, rng)]
    rows = [("fed.reports", "", b"not json" if invalid_every and n % invalid_every == 0 else some[n % 10_000])
            for n in range(RECORDS)]  # fmt: skip
    await asyncio.to_thread(connection_to([deployment.cloud().store_url]).publish, rows)


@contextlib.asynccontextmanager
async def _subscribed(deployment: Deployment, count: int) -> AsyncIterator[None]:
    """Subscriptions that match one record in ten, of a site that has no agent: nobody receives the results."""
    connection = await open_connection([deployment.cloud().url], name="benchmark")
    catalog = Catalog(connection, deployment.cloud().name)

    async def renew() -> None:
        while True:
            await catalog.renew("nowhere")
            await asyncio.sleep(5)

    for n in range(count):
        await catalog.subscribe("of_kind_in_area", f"k{n}", "nowhere", {"kind": f"k{n % 100}", "area": f"a{n // 100}"})
    renewal = asyncio.create_task(renew())
    try:
        yield
    finally:
        await cancel_and_wait(renewal)
        await connection.close()


def _plain(spark: SparkSession, deployment: Deployment, folder: Path) -> None:
    reader = spark.read.format("nats").option("servers", deployment.cloud().store_url)
    reader = reader.option("stream", subjects.feed_stream("reports")).option("partitions", 2)
    frame = reader.option("valueSchema", REPORTS.schema).load().where("error IS NULL")
    frame.select("value.*", "sequence", "time").write.mode("overwrite").parquet(str(folder / "plain"))


class _Run(NamedTuple):
    """plain: records/s of plain Spark. rate: records/s from the third micro-batch on, until all is in the table.
    start: seconds until that begins: Java, Spark, catalog, queries, workers, and the first micro-batches. driver,
    everything: CPU seconds per million records of the driver's Python, and with Java and Python's workers, after it."""

    plain: float
    rate: float
    start: float
    driver: float
    everything: float


async def _run(spark: SparkSession, *, channel: bool, invalid_every: int = 0) -> _Run:
    """The data cluster is a process of its own, as users run it: what is measured is its alone."""
    async with two_sites() as (deployment, folder):
        await add_channel(deployment, folder, spark)
        await _fill(deployment, invalid_every)
        spark.dataSource.register(NatsSource)
        await asyncio.to_thread(_plain, spark, deployment, folder)  # starts the workers
        _, plain = await asyncio.to_thread(timed, lambda: _plain(spark, deployment, folder))
        async with _subscribed(deployment, _SUBSCRIPTIONS if channel else 0):
            return await _measure(deployment, folder, RECORDS / plain)


async def _measure(deployment: Deployment, folder: Path, plain: float) -> _Run:
    begin = time.perf_counter()
    with cluster_process(deployment, folder) as (pid, port):
        process, table = psutil.Process(pid), folder / "warehouse/datasets/reports"
        await until(lambda: _answered(table) >= _WARM)
        first, start, own, everything = _answered(table), time.perf_counter(), _cpu(process), _all_cpu(process)
        await until(lambda: _answered(table) >= RECORDS)
        await until(lambda: DeltaTable(table / "data").transaction_version("records") == RECORDS)
        seconds, million = time.perf_counter() - start, (RECORDS - first) / 1e6
        own, everything = _cpu(process) - own, _all_cpu(process) - everything
        print(f"{seconds:.1f} s, {where_time_goes({}, metrics(port))}", flush=True)
    return _Run(plain, (RECORDS - first) / seconds, start - begin, own / million, everything / million)


def _answered(table: Path) -> int:
    """The records of complete micro-batches, as the driver notes them: it is not asked, which would cost it time."""
    try:
        return int(json.loads((table / "state.json").read_text())["position"])
    except (OSError, KeyError):
        return 0


def _cpu(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def _all_cpu(process: psutil.Process) -> float:
    """Of a process and those it has started."""
    return sum(_cpu(one) for one in [process, *process.children(recursive=True)])


def ingest(spark: SparkSession) -> Iterator[Figure]:
    """Records into the table; the driver's CPU; and what invalid records cost."""
    into = "plain Spark to Parquet"
    bare = asyncio.run(_run(spark, channel=False))
    yield Figure(
        f"{RECORDS:,} records into the table, no channel; driver's Python {bare.driver:.2f} CPU-s per million; "
        f"{bare.start:.1f} s from a start to {_WARM:,} records",
        f"{bare.rate:,.0f}/s", f"{bare.plain:,.0f}/s, {into}", bare.rate / bare.plain, "≥ 0.7",
    )  # fmt: skip
    full = asyncio.run(_run(spark, channel=True))
    yield Figure(
        f"the same with {_SUBSCRIPTIONS:,} subscriptions, one record in ten matches; driver's Python "
        f"{full.driver:.2f} CPU-s per million; {full.start:.1f} s from a start",
        f"{full.rate:,.0f}/s", f"{full.plain:,.0f}/s, {into}", full.rate / full.plain, "≥ 0.7",
    )  # fmt: skip
    invalid = asyncio.run(_run(spark, channel=False, invalid_every=100))
    yield Figure(
        "CPU of all processes with 1 % invalid records, over none, per million",
        f"{invalid.everything:.1f} s", f"{bare.everything:.1f} s", invalid.everything / bare.everything, "≤ 1.1",
    )  # fmt: skip
