"""Matching very many subscriptions with a long micro-batch: Spark, DuckDB, and one query for each subscription.

Executors have written the records to two files, as they do it in the data cluster. DuckDB has them in memory.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.cluster_workload import KIND_AND_AREA, NEAR, REPORTS, SHELTERS, reports
from benchmarks.measure import Figure, median_seconds

from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.datasets.dataset_tables import WrittenRecords
from nearcast.cluster.datasets.schema import dataset_ddl, parse_ddl
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.domain.dataset import DatasetSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Loaded:
    """A dataset whose frame is given."""

    def __init__(self, spec: DatasetSpec, spark: SparkSession, table: pa.Table) -> None:
        self.spec, self.version, self.schema = spec, 0, parse_ddl(dataset_ddl(spec), spec.name)
        self._frame = spark.createDataFrame(table)

    def frame(self) -> DataFrame:
        return self._frame


EQUAL_IN_DUCK = """SELECT p.key, {columns} FROM subs p
JOIN reports r ON r.kind = p.kind AND r.area = p.area JOIN shelters s ON s.area = r.area"""
# Each report is copied into the nine cells around its own, as Spark does it.
NEAR_IN_DUCK = """WITH a AS (SELECT *, cy + UNNEST([-1, 0, 1]) AS ey FROM (
  SELECT *, floor(lat / 0.005)::INT AS cy, floor(lon / 0.0061)::INT AS cx FROM reports)),
b AS (SELECT *, cx + UNNEST([-1, 0, 1]) AS ex FROM a)
SELECT p.key, {columns} FROM subs p JOIN b r ON r.ey = p.cy AND r.ex = p.cx
WHERE 2 * 6371008.8 * asin(sqrt(pow(sin(radians(r.lat - p.lat) / 2), 2)
  + cos(radians(p.lat)) * cos(radians(r.lat)) * pow(sin(radians(r.lon - p.lon) / 2), 2))) <= p.radius"""


def matching(spark: SparkSession) -> Iterator[Figure]:
    """One micro-batch against very many subscriptions, in Spark, in DuckDB, and one query for each subscription."""
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as folder:
        yield from _matching(spark, Path(folder))


def _written(batch: pa.Table, folder: Path) -> WrittenRecords:
    half, paths = batch.num_rows // 2, [folder / "0.parquet", folder / "1.parquet"]
    for path, part in zip(paths, (batch.slice(0, half), batch.slice(half)), strict=True):
        pq.write_table(part, path, compression="zstd")
    return WrittenRecords(tuple(map(str, paths)), tuple(path.stat().st_size for path in paths), batch.num_rows)


def _matching(spark: SparkSession, folder: Path) -> Iterator[Figure]:
    import duckdb

    rng = random.Random(1)
    matcher, views = Matcher(spark), DatasetViews(spark)
    batch = pa.Table.from_pylist(reports(10_000, rng))
    batch = batch.append_column("_sequence", pa.array(range(10_000), pa.int64()))
    batch = batch.append_column("_arrived", pa.array([0] * 10_000, pa.timestamp("us", "UTC")))
    shelters = pa.table({"area": [f"a{n}" for n in range(100)], "shelter": [f"s{n}" for n in range(100)]})
    table: Any = Loaded(REPORTS, spark, batch)
    written = _written(batch, folder)
    views.tables["shelters"] = cast("Any", Loaded(SHELTERS, spark, shelters))
    table.frame().createOrReplaceTempView("reports")
    views.tables["shelters"].frame().createOrReplaceTempView("shelters")
    datasets = {"reports": REPORTS, "shelters": SHELTERS}
    # 10,000 pairs of values, each wanted by ten subscriptions, as if they had a third value that is not used.
    equal: list[dict[str, Any]] = [{"kind": f"k{n % 100}", "area": f"a{n // 100 % 100}"} for n in range(100_000)]
    near: list[dict[str, Any]] = [
        {"lat": 33.6 + rng.uniform(-0.5, 0.5), "lon": -117.8 + rng.uniform(-0.5, 0.5), "radius": 500.0}
        for _ in range(100_000)
    ]
    duck = duckdb.connect()
    duck.execute("SET threads = 2")
    duck.register("reports", batch)
    duck.register("shelters", shelters)
    cases = (
        (
            KIND_AND_AREA,
            equal,
            EQUAL_IN_DUCK,
            "r.id, r.sent, s.shelter",
            "'id': r.id, 'sent': r.sent, 'shelter': s.shelter",
        ),
        (NEAR, near, NEAR_IN_DUCK, "r.id", "'id': r.id"),
    )
    for spec, wanted, text, columns, fields in cases:
        what = "a radius" if spec is NEAR else "two equalities"
        channel = RunningChannel(validate_query(spark, spec, datasets))
        match = partial(matcher.match_new, [channel], table, written, views)
        by_count = {}
        for count in (25_000, 50_000, 100_000):
            rows = {f"{n:06d}": row for n, row in enumerate(wanted[:count])}
            matcher.load(channel, rows)
            matcher.fold(0.0)  # as the driver does
            for _ in range(10):  # the plan is reused from the third on; the JVM compiles longer
                found = match()
            by_count[count] = median_seconds(match, 9)
        subs = pa.Table.from_pylist([{"key": key, **row} for key, row in rows.items()])
        duck.register("plain", subs)
        cells = ", floor(lat / 0.005)::INT AS cy, floor(lon / 0.0061)::INT AS cx" if spec is NEAR else ""
        duck.execute(f"CREATE OR REPLACE TABLE subs AS SELECT *{cells} FROM plain")
        # The same work: the rows that are published are JSON. Beside it the join alone, as columns.
        same = text.replace("{columns}", f"to_json({{{fields}}})::VARCHAR AS row")
        other = _ask(duck, same)
        assert other.num_rows == found.num_rows, (other.num_rows, found.num_rows)
        assert {_canonical(row) for row in other["row"].to_pylist()} == {
            _canonical(row) for row in found["row"].to_pylist()
        }
        baseline, seconds = median_seconds(partial(_ask, duck, same), 9), by_count[100_000]
        bare = median_seconds(partial(_ask, duck, text.replace("{columns}", columns)), 9)
        yield Figure(
            f"100,000 subscriptions × 10,000 reports, {what}: {found.num_rows:,} matches, rows as JSON",
            f"{seconds * 1000:,.0f} ms",
            f"{baseline * 1000:,.0f} ms, DuckDB ({bare * 1000:,.0f} ms without JSON)",
            baseline / seconds,
            "≥ 0.5",
        )
        half, quarter = by_count[50_000], by_count[25_000]
        yield Figure(
            "the same with 25,000 and 50,000: twice the subscriptions and matches, how much the time?",
            f"{quarter * 1000:,.0f}, {half * 1000:,.0f} ms", "", seconds / half, "≤ 2",
        )  # fmt: skip
        start = time.perf_counter()
        for row in wanted[:100]:
            spark.sql(spec.query, args=row).toArrow()
        each = (time.perf_counter() - start) / 100
        yield Figure(
            "the same, one query for each subscription (from 100)",
            f"{seconds * 1000:,.0f} ms", f"{each * 100_000:,.0f} s", each * 100_000 / seconds, "≥ 1,000",
        )  # fmt: skip


def _canonical(row: str) -> str:
    return json.dumps(json.loads(row), sort_keys=True)


def _ask(duck: Any, text: str) -> Any:
    return duck.execute(text).to_arrow_table()
