"""What grows: a dataset with a million keys, and the executors' lane with more and more workers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pyarrow as pa
from benchmarks.cluster_matching import Loaded
from benchmarks.cluster_workload import REPORTS, reports, two_sites
from benchmarks.measure import Figure, timed
from tests.cluster.test_spark_cluster import spark_cluster

from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.datasets import dataset_tables
from nearcast.cluster.datasets.dataset_tables import StreamTable
from nearcast.cluster.datasets.validation import QUARANTINE, RecordValidator, ValidatedBatch, record_times
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.datasets.watermarks import Watermarks
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.nats_source.driver_read import DriverReader
from nearcast.cluster.nats_source.range_write import write_ranges
from nearcast.cluster.spark_session import spark_session
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.nats.connection import open_connection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYS, _UPDATES, _BATCHES = 1_000_000, 1_000, 15
_USERS = DatasetSpec("users", "user STRING NOT NULL, name STRING, lat DOUBLE, lon DOUBLE", "fed.users", "user")
_ENRICHED = ChannelSpec(
    "enriched",
    "SELECT r.id, u.name FROM reports r JOIN users u ON u.user = r.id WHERE r.kind = :kind",
    (Parameter("kind", "string"),),
    new="reports",
)


def keyed(spark: SparkSession) -> Iterator[Figure]:
    """Batches of updates of a dataset with a million keys, and after each a batch of reports that joins it."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as folder:
        users = StreamTable(spark, _USERS, Warehouse(folder))
        matcher, views = Matcher(spark), DatasetViews(spark)
        views.tables["users"] = users
        channel = RunningChannel(validate_query(spark, _ENRICHED, {"reports": REPORTS, "users": _USERS}))
        matcher.load(channel, {f"{n:04d}": {"kind": f"k{n}"} for n in range(1000)})
        matcher.fold(0.0)
        position = [0]

        def update(numbers: list[int]) -> None:
            """Not measured: making the batch, as the source does it."""
            batch = _user_batch(users, numbers, position[0])
            position[0] += len(numbers)
            taken.append(timed(lambda: users.keep(batch))[1])

        def report() -> None:
            some = pa.Table.from_pylist(reports(100, rng))
            some = some.set_column(0, "id", pa.array([f"u{rng.randrange(_KEYS)}" for _ in range(100)]))
            some = some.append_column("_sequence", pa.array(range(100), pa.int64()))
            some = some.append_column("_arrived", pa.array([0] * 100, pa.timestamp("us", "UTC")))
            table = cast("Any", Loaded(REPORTS, spark, some))
            found, seconds = timed(lambda: matcher.match_new([channel], table, some, views))
            assert found.num_rows == 100, found.num_rows
            answered.append(seconds)

        taken: list[float] = []
        answered: list[float] = []
        update(list(range(_KEYS)))
        users.flush()
        for already in (0, _KEYS // 5):
            if already:
                update(list(range(already)))
            for n in range(_BATCHES + 3):
                if n == 3:  # the base is cached, and Java has compiled
                    taken.clear()
                    answered.clear()
                update([rng.randrange(_KEYS) for _ in range(_UPDATES)])
                report()
            what = f"{_KEYS:,} keys, {already:,} of them changed since the base was made"
            yield _milliseconds(f"{what}: a batch of {_UPDATES:,} updates", taken, "≤ 100 ms")
            yield _milliseconds(f"{what}: the batch of 100 reports after it", answered, "≤ 300 ms")
        users.close()


def _user_batch(users: StreamTable, numbers: list[int], position: int) -> ValidatedBatch:
    count = len(numbers)
    columns: list[Any] = [[f"u{n}" for n in numbers], [f"n{n}" for n in numbers], [1.0] * count, [1.0] * count]
    columns += [range(position + 1, position + count + 1), [time.time_ns() // 1000] * count]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, users.arrow, strict=True)]
    valid = pa.table(arrays, schema=users.arrow)
    times = record_times(valid, users.spec)
    return ValidatedBatch(valid, QUARANTINE.empty_table(), times, position + count, 0, Watermarks())


def _milliseconds(what: str, seconds: list[float], target: str) -> Figure:
    return Figure(
        what, f"{statistics.median(seconds) * 1000:,.0f} ms, most {max(seconds) * 1000:,.0f} ms", "", None, target
    )


_RECORDS = 250_000  # a whole micro-batch


class WaitingValidator(RecordValidator):
    """Each record takes 0.2 ms, as if another service were asked: so that two cores can show more workers."""

    def split(self, batch: pa.Table, watermarks: Watermarks) -> ValidatedBatch:
        time.sleep(0.0002 * batch.num_rows)
        return super().split(batch, watermarks)


def workers(spark: SparkSession) -> Iterator[Figure]:
    """Records into a table by 1, 2 and 4 workers with a core each, of a Spark cluster on this machine."""
    spark.stop()
    os.environ |= {"PYTHONPATH": str(Path.cwd()), "PYSPARK_PYTHON": sys.executable}  # for the workers
    with patch.object(dataset_tables, "RecordValidator", WaitingValidator):
        seconds = asyncio.run(_by_workers((1, 2, 4)))
    for count, took in seconds.items():
        yield Figure(
            f"{_RECORDS:,} records of which each takes 0.2 ms of waiting, {count} one-core workers",
            f"{took:.1f} s", f"{seconds[1]:.1f} s with 1", seconds[1] / took, "≥ 3.5 with 4" if count == 4 else "",
        )  # fmt: skip


async def _by_workers(counts: tuple[int, ...]) -> dict[int, float]:
    body = [json.dumps(record).encode() for record in reports(10_000, random.Random(5))]
    async with two_sites() as (deployment, folder):
        url = deployment.cloud().store_url
        connection = await open_connection([url], name="fill")
        await connection.jetstream().add_stream(name="bench", subjects=["bench"], allow_direct=True)
        await connection.close()
        rows = [("bench", "", body[n % 10_000]) for n in range(_RECORDS)]
        await asyncio.to_thread(connection_to([url]).publish, rows)
        return {count: await asyncio.to_thread(_with_workers, url, folder, count) for count in counts}


def _with_workers(url: str, folder: Path, count: int) -> float:
    here = folder / f"workers{count}"
    here.mkdir()
    with spark_cluster(here, workers=count, cores=1) as master:
        spark = spark_session("nearcast benchmark", master=master)
        try:
            _wait_for_executors(spark, count)
            _write(spark, url, here, "warm", 5_000 * count, count)  # Python's workers start
            return timed(lambda: _write(spark, url, here, "measured", _RECORDS, count))[1]
        finally:
            spark.stop()


def _wait_for_executors(spark: SparkSession, count: int) -> None:
    """A session begins with the first one."""
    deadline = time.monotonic() + 120
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1 < count:  # without the driver
        assert time.monotonic() < deadline, "not all executors came"
        time.sleep(0.1)


def _write(spark: SparkSession, url: str, folder: Path, name: str, last: int, tasks: int) -> None:
    """Executors read, validate and write the records; the driver commits them."""
    options = {"servers": url, "stream": "bench", "valueSchema": REPORTS.schema}
    reader = DriverReader(options | {"partitions": str(tasks)}, str(folder / name))
    (folder / name / "offsets").mkdir(parents=True)
    (folder / name / "offsets" / "0").write_text(f'v1\n{{}}\n{{"bench": {last}}}')
    table = StreamTable(spark, REPORTS, Warehouse(str(folder / name / "warehouse")))
    found = reader.long_batch(0, 0)
    assert found is not None, "a short batch"
    written = write_ranges(spark, table, reader.ranges, *found)
    assert written.rows == last, written
    table.keep(written)
    table.close()
