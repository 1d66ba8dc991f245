"""A plan made once sees the records of each batch, and never those of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from nearcast.cluster.carried import Carried, stays_fresh
from nearcast.cluster.check import check_query
from nearcast.cluster.matching import Matcher, RunningChannel
from nearcast.cluster.producers import Views
from nearcast.cluster.tables import StreamTable
from nearcast.cluster.warehouse import Warehouse
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec

pytestmark = pytest.mark.xdist_group("spark")
NUMBERS = StructType().add("n", "long")
REPORTS = DatasetSpec("reports", "id STRING, kind STRING, severity INT", "fed.reports")


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def test_a_frame_gives_what_is_carried_when_it_is_evaluated(spark: SparkSession) -> None:
    records = Carried(spark, NUMBERS, numbers(1, 2))
    for source in (records.single, records.spread):
        frame = source.selectExpr("n * 2 AS twice")
        assert stays_fresh(frame)
        for some in ([], [7], [5] * 3000, [1, 2]):
            records.put(pa.concat_tables([numbers(*some[:1]), numbers(*some[1:])]))
            assert sorted(frame.toArrow()["twice"].to_pylist()) == sorted(2 * n for n in some)


def test_plans_that_keep_records_are_told_from_those_that_do_not(spark: SparkSession) -> None:
    spread = Carried(spark, NUMBERS, numbers(1)).spread
    records = Carried(spark, NUMBERS, numbers(1)).single
    many = spark.range(100).withColumnRenamed("id", "n")
    assert stays_fresh(records.groupBy("n").count())
    assert not stays_fresh(spread.groupBy("n").count())
    assert stays_fresh(spread.join(many.hint("broadcast"), "n"))
    assert stays_fresh(records.join(many.hint("broadcast"), "n"))
    assert not stays_fresh(many.join(records.hint("broadcast"), "n"))
    assert not stays_fresh(records.repartition(2))
    records.createOrReplaceTempView("_numbers")
    assert not stays_fresh(spark.sql("SELECT id FROM range(9) WHERE id > (SELECT max(n) FROM _numbers)"))


def records(*rows: tuple[str, str, int]) -> pa.Table:
    columns: list[Any] = [pa.array(column) for column in zip(*rows, strict=True)]
    count = len(rows)
    columns[2] = columns[2].cast(pa.int32())
    columns += [pa.array(range(count), pa.int64()), pa.array([0] * count, pa.timestamp("us", "UTC"))]
    return pa.Table.from_arrays(columns, names=["id", "kind", "severity", "_sequence", "_arrived"])


def test_a_channel_is_answered_the_same_by_a_plan_that_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Batch after batch, with subscriptions that come and go, and one batch for which a channel fails."""
    query = "SELECT r.id FROM reports r WHERE r.kind = :kind AND 10 / r.severity > :least"
    spec = ChannelSpec("c", query, (Parameter("kind", "string"), Parameter("least", "int")), None, "reports")
    fleeting = ChannelSpec("f", f"{query} AND r._arrived < now()", spec.parameters, None, "reports")
    table, views, matcher = StreamTable(spark, REPORTS, Warehouse(str(tmp_path))), Views(spark), Matcher(spark)
    channels = [RunningChannel(check_query(spark, s, {"reports": REPORTS})) for s in (spec, fleeting)]

    def told(*rows: tuple[str, str, int]) -> list[tuple[str, str, str]]:
        found = matcher.match_new(channels, table, records(*rows), views).to_pylist()
        return sorted((row["channel"], row["key"], row["row"]) for row in found)

    def both(*rows: tuple[str, str]) -> list[tuple[str, str, str]]:
        return [(channel, key, f'{{"id":"{name}"}}') for channel in ("c", "f") for key, name in rows]

    for channel in channels:
        matcher.load(channel, {"1": {"kind": "fire", "least": 0}, "2": {"kind": "fire", "least": 4}})
    for n in range(6):
        assert told((f"a{n}", "fire", 5), (f"b{n}", "flood", 1)) == both(("1", f"a{n}"))
        assert told((f"a{n}", "fire", 1)) == both(("1", f"a{n}"), ("2", f"a{n}"))
    assert matcher._kept["reports", False].channels == channels[:1]
    assert told(("z", "fire", 0)) == [], "it cannot be divided by zero"
    assert not matcher._kept
    assert [channel.failures for channel in channels] == [1, 1]
    assert told(("y", "fire", 5)) == both(("1", "y"))
    for channel in channels:
        channel.settled = 2
    assert told(("x", "fire", 5)) == both(("1", "x"))
    assert matcher._kept
    matcher.load(channels[0], {"3": {"kind": "flood", "least": 0}})
    assert told(("w", "flood", 1)) == [("c", "3", '{"id":"w"}')]
