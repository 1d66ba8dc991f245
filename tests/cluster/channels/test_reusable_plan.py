"""A reused plan sees the records of each batch, and never those of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.reusable_plan import PlanInput, is_reusable
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.datasets.dataset_tables import StreamTable
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec

pytestmark = pytest.mark.xdist_group("spark")
NUMBERS = StructType().add("n", "long")
REPORTS = DatasetSpec("reports", "id STRING, kind STRING, severity INT", "fed.reports")


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def test_each_evaluation_of_a_frame_gives_the_current_rows(spark: SparkSession) -> None:
    records = PlanInput(spark, NUMBERS, numbers(1, 2))
    frame = records.single.selectExpr("n * 2 AS twice")
    assert is_reusable(frame)
    assert frame.toArrow()["twice"].to_pylist() == [2, 4]
    for some in ([], [7], [5] * 3000, [1, 2]):
        records.put(pa.concat_tables([numbers(*some[:1]), numbers(*some[1:])]))
        assert sorted(frame.toArrow()["twice"].to_pylist()) == sorted(2 * n for n in some)


def test_plans_that_cache_their_input_are_not_reusable(spark: SparkSession) -> None:
    records = PlanInput(spark, NUMBERS, numbers(1)).single
    many = spark.range(100).withColumnRenamed("id", "n")
    assert is_reusable(records.groupBy("n").count())
    assert is_reusable(records.join(many.hint("broadcast"), "n"))
    assert not is_reusable(many.join(records.hint("broadcast"), "n"))
    assert not is_reusable(records.repartition(2))
    records.createOrReplaceTempView("_numbers")
    assert not is_reusable(spark.sql("SELECT id FROM range(9) WHERE id > (SELECT max(n) FROM _numbers)"))


def records(*rows: tuple[str, str, int]) -> pa.Table:
    columns: list[Any] = [pa.array(column) for column in zip(*rows, strict=True)]
    count = len(rows)
    columns[2] = columns[2].cast(pa.int32())
    columns += [pa.array(range(count), pa.int64()), pa.array([0] * count, pa.timestamp("us", "UTC"))]
    return pa.Table.from_arrays(columns, names=["id", "kind", "severity", "_sequence", "_arrived"])


def test_a_reused_plan_gives_the_same_results(spark: SparkSession, tmp_path: Path) -> None:
    """Batch after batch, with subscriptions that come and go, and one batch for which a channel fails."""
    query = "SELECT r.id FROM reports r WHERE r.kind = :kind AND 10 / r.severity > :least"
    spec = ChannelSpec("c", query, (Parameter("kind", "string"), Parameter("least", "int")), None, "reports")
    nondeterministic = ChannelSpec("f", f"{query} AND r._arrived < now()", spec.parameters, None, "reports")
    table, views, matcher = StreamTable(spark, REPORTS, Warehouse(str(tmp_path))), DatasetViews(spark), Matcher(spark)
    channels = [RunningChannel(validate_query(spark, s, {"reports": REPORTS})) for s in (spec, nondeterministic)]

    def matched(*rows: tuple[str, str, int]) -> list[tuple[str, str, str]]:
        found = matcher.match_new(channels, table, records(*rows), views).to_pylist()
        return sorted((row["channel"], row["key"], row["row"]) for row in found)

    def both(*rows: tuple[str, str]) -> list[tuple[str, str, str]]:
        return [(channel, key, f'{{"id":"{name}"}}') for channel in ("c", "f") for key, name in rows]

    for channel in channels:
        matcher.load(channel, {"1": {"kind": "fire", "least": 0}, "2": {"kind": "fire", "least": 4}})
    for n in range(6):
        assert matched((f"a{n}", "fire", 5), (f"b{n}", "flood", 1)) == both(("1", f"a{n}"))
        assert matched((f"a{n}", "fire", 1)) == both(("1", f"a{n}"), ("2", f"a{n}"))
    assert list(matcher.kept.plans["reports", False].bases) == [channels[0].shape]
    assert matched(("v", "fire", 5), ("z", "fire", 0)) == both(("1", "v")), "only z cannot be divided by"
    assert not matcher.kept.plans
    assert [channel.failures for channel in channels] == [1, 1]
    assert [(fault.channel, fault.record) for fault in matcher.faults.take()] == [("c", 1), ("f", 1)]
    assert matched(("y", "fire", 5)) == both(("1", "y"))
    for channel in channels:
        assert channel.shape is not None
        channel.shape.unchanged_batches = 2
    assert matched(("x", "fire", 5)) == both(("1", "x"))
    assert matcher.kept.plans
    matcher.load(channels[0], {"3": {"kind": "flood", "least": 0}})
    assert matched(("w", "flood", 1)) == [("c", "3", '{"id":"w"}')]
