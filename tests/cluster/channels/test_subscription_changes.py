"""Subscriptions that come and go between micro-batches: each takes effect with the next one, and the plan is kept."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from nearcast.cluster.channels import channel_shape, delta_plans, failing_channels
from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.datasets.dataset_tables import StreamTable, WrittenRecords
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec

pytestmark = pytest.mark.xdist_group("spark")
REPORTS = DatasetSpec("reports", "id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE", "fed.reports")
EQUAL = ("SELECT r.id FROM reports r WHERE r.kind = :kind", {"kind": "string"})
RANGE = ("SELECT r.id FROM reports r WHERE r.severity BETWEEN :low AND :high", {"low": "int", "high": "int"})
NEAR = (
    "SELECT r.id FROM reports r WHERE distance(r.lat, r.lon, :lat, 0D) <= :radius",
    {"lat": "double", "radius": "double"},
)


class Bench:
    """A matcher and the new records of one dataset."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.matcher, self.views = spark, Matcher(spark), DatasetViews(spark)
        self.table = StreamTable(spark, REPORTS, Warehouse(str(folder)))
        self.channels: list[RunningChannel] = []
        self.sequence = 0

    def channel(self, name: str, query: tuple[str, Mapping[str, str]]) -> RunningChannel:
        parameters = tuple(Parameter(p, kind) for p, kind in query[1].items())
        spec = ChannelSpec(name, query[0], parameters, None, "reports")
        made = RunningChannel(validate_query(self.spark, spec, {"reports": REPORTS}))
        self.channels.append(made)
        return made

    def records(self, rng: random.Random, count: int = 5) -> list[dict[str, Any]]:
        self.sequence += count
        return [
            {
                "id": f"r{n}", "kind": rng.choice(["fire", "flood", "quake"]), "severity": rng.randrange(9),
                "lat": rng.randrange(20) / 1000, "lon": 0.0, "_sequence": n, "_arrived": 0,
            }
            for n in range(self.sequence - count, self.sequence)
        ]  # fmt: skip

    def matched(self, records: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
        table = pa.Table.from_pylist(records, self.table.arrow)
        found = self.matcher.match_new(self.channels, self.table, table, self.views)
        return sorted((row["channel"], row["key"], row["row"]) for row in found.to_pylist())

    def matched_on_the_long_lane(self, records: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
        frame = self.spark.createDataFrame(pa.Table.from_pylist(records, self.table.arrow), self.table.schema)
        found = self.matcher.match(self.channels, {"reports": self.views.part("reports", "batch", frame)})
        return sorted((row["channel"], row["key"], row["row"]) for row in found.to_pylist())


def right(channel: RunningChannel, record: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    if "kind" in row:
        return bool(record["kind"] == row["kind"])
    if "high" in row:
        return bool(row["low"] <= record["severity"] <= row["high"])
    return bool(abs(record["lat"] - row["lat"]) * 111_195.08 <= row["radius"])


def draw(channel: RunningChannel, rng: random.Random) -> dict[str, Any]:
    names = [p.name for p in channel.validated.spec.parameters]
    if "kind" in names:
        return {"kind": rng.choice(["fire", "flood", "quake", "none"])}
    if "high" in names:
        low = rng.randrange(9)
        return {"low": low, "high": low + rng.randrange(3)}
    return {"lat": rng.randrange(20) / 1000 + 0.0001, "radius": float(rng.choice((100, 500, 900)))}


def test_changes_take_effect_with_the_next_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equality, range and radius, four channels of three shapes; every now and then deltas are folded."""
    monkeypatch.setattr(channel_shape, "_LARGEST_DELTA", 6)
    bench, rng, number = Bench(spark, tmp_path), random.Random(4), 0
    channels = [
        bench.channel("a", EQUAL),
        bench.channel("b", EQUAL),
        bench.channel("c", RANGE),
        bench.channel("d", NEAR),
    ]
    plans, folded = set[int](), 0
    deltas: list[Any] = []
    for step in range(16):
        for channel in channels:
            gone = rng.sample(sorted(channel.wanted), min(len(channel.wanted), rng.randrange(2)))
            added = {f"k{number + n}": draw(channel, rng) for n in range(rng.randrange(3) if step else 4)}
            number += len(added)
            bench.matcher.change(channel, added, gone)
        if step % 5 == 4:
            before = [channel.shape.state.base for channel in channels if channel.shape]
            bench.matcher.fold(0.0)
            bench.matcher.settle()
            folded += sum(c.shape.state.base is not b for c, b in zip(channels, before, strict=True) if c.shape)
        records = bench.records(rng)
        expected = sorted(
            (channel.name, key, f'{{"id":"{record["id"]}"}}')
            for channel in channels
            for key, row in channel.wanted.items()
            for record in records
            if right(channel, record, row)
        )
        assert bench.matched(records) == expected
        if step % 3 != 2:  # what changed since the last time, and what did not
            assert bench.matched_on_the_long_lane(records) == expected
        plans |= {id(plan.records) for plan in bench.matcher.kept.plans.values()}
        deltas += [plan.delta for plan in bench.matcher.kept.plans.values() if plan.delta is not None]
    assert folded
    assert channels[0].shape is channels[1].shape
    assert len({channel.shape for channel in channels}) == 3
    # One when it was made, and one for each shape that was folded: never one for a change.
    assert len(plans) <= 1 + folded, plans
    (plan,) = bench.matcher.kept.plans.values()
    assert set(plan.bases) == {channel.shape for channel in channels}
    assert deltas
    assert not any(delta.replanned for delta in deltas)


def test_a_delta_whose_plan_cannot_be_kept_is_planned_for_each_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, rng = Bench(spark, tmp_path), random.Random(5)
    channel = bench.channel("a", EQUAL)
    monkeypatch.setattr(delta_plans, "is_reusable", lambda frame: "ShuffledHashJoin" not in plan_text(frame))
    for step, kind in enumerate(("fire", "flood", "quake", "none", "fire")):
        bench.matcher.change(channel, {f"k{step}": {"kind": kind}})
        if step == 1:
            assert channel.shape is not None
            bench.matcher._fold(channel.shape)
        records = bench.records(rng)
        assert bench.matched(records) == sorted(
            ("a", key, f'{{"id":"{record["id"]}"}}')
            for record in records
            for key, row in channel.wanted.items()
            if record["kind"] == row["kind"]
        )
    (plan,) = bench.matcher.kept.plans.values()
    assert plan.delta is not None
    assert plan.delta.replanned == {channel.shape}


def test_a_delta_that_does_not_change_any_more_is_folded(spark: SparkSession, tmp_path: Path) -> None:
    """However small it is: else every batch would evaluate it beside its base for good."""
    bench, rng = Bench(spark, tmp_path), random.Random(6)
    channel = bench.channel("a", EQUAL)
    bench.matcher.change(channel, {"k0": {"kind": "fire"}})
    assert channel.shape is not None
    bench.matcher._fold(channel.shape)
    bench.matcher.change(channel, {"k1": {"kind": "flood"}})
    for now, folded in ((0.0, False), (4.0, False), (6.0, True)):
        bench.matcher.fold(100 + now)
        bench.matcher.settle()
        assert (channel.shape.state.base.rows.num_rows == 2) is folded
    assert not channel.shape.state.delta.num_rows
    bench.matcher.change(channel, {"k2": {"kind": "quake"}})
    bench.matcher.fold(200.0)
    bench.matcher.change(channel, {"k3": {"kind": "quake"}})
    bench.matcher.fold(206.0)
    bench.matcher.settle()
    assert channel.shape.state.delta.num_rows == 2, "it has just changed"
    assert {row[1] for row in bench.matched(bench.records(rng, 50))} == {"k0", "k1", "k2", "k3"}


def test_a_batch_is_one_job_of_one_task(spark: SparkSession, tmp_path: Path) -> None:
    """Of all shapes, of bases and deltas: a job takes longer than joining few records."""
    bench, rng = Bench(spark, tmp_path), random.Random(7)
    channels = [bench.channel("a", EQUAL), bench.channel("b", RANGE), bench.channel("c", NEAR)]
    scheduler: Any = spark.sparkContext._jsc.sc().dagScheduler()
    for part in ("base", "delta"):
        for channel in channels:
            bench.matcher.change(channel, {f"{part}{n}": draw(channel, rng) for n in range(5)})
            if part == "base" and channel.shape is not None:
                bench.matcher._fold(channel.shape)
        for _ in range(4):
            bench.matched(bench.records(rng))
        before = scheduler.numTotalJobs()
        bench.matched(bench.records(rng))
        assert scheduler.numTotalJobs() == before + 1, part


@pytest.mark.parametrize("count", [1, 199, 201, 15_000])
def test_many_results_of_few_records_come_whole(spark: SparkSession, tmp_path: Path, count: int) -> None:
    """As the answer of a call, or as several Arrow batches through a socket."""
    bench = Bench(spark, tmp_path)
    channel = bench.channel("a", EQUAL)
    bench.matcher.change(channel, {f"k{n}": {"kind": "fire"} for n in range(count)})
    assert channel.shape is not None
    bench.matcher._fold(channel.shape)
    record = {"id": "r", "kind": "fire", "severity": 1, "lat": 0.0, "lon": 0.0, "_sequence": 1, "_arrived": 0}
    for _ in range(5):
        found = bench.matched([record, {**record, "id": "s"}])
        assert len(found) == len({(key, row) for _, key, row in found}) == 2 * count
    assert bench.matcher.kept.plans


def plan_text(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_one_that_fails_is_taken_out_wherever_it_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the delta of a shape whose other channel and subscriptions lose nothing."""
    monkeypatch.setattr(failing_channels, "_ISOLATION_SECONDS", 600.0)  # a busy machine
    query = ("SELECT r.id FROM reports r WHERE 10 / :x > 0 AND r.kind = 'fire'", {"x": "int"})
    bench = Bench(spark, tmp_path)
    one, two = bench.channel("one", query), bench.channel("two", query)
    fire = {"kind": "fire", "severity": 1, "lat": 0.0, "lon": 0.0, "_arrived": 0}

    def batch(n: int) -> list[tuple[str, str]]:
        records = [{"id": f"r{2 * n + m}", "_sequence": 2 * n + m, **fire} for m in range(2)]
        return sorted({(name, key) for name, key, _ in bench.matched(records)})

    bench.matcher.load(one, {"a": {"x": 1}, "b": {"x": 2}})
    bench.matcher.load(two, {"a": {"x": 1}})
    good = [("one", "a"), ("one", "b"), ("two", "a")]
    for n in range(4):
        assert batch(n) == good
    bench.matcher.change(two, {"zero": {"x": 0}})
    assert batch(4) == good, "all others have their results of the same batch"
    assert [(f.channel, f.key) for f in bench.matcher.faults.take()] == [("two", "zero")]
    assert set(two.off) == {"zero"}
    assert not one.off
    assert batch(5) == good
    assert not bench.matcher.faults.take(), "it is not evaluated again"
    bench.matcher.change(two, {}, ["zero"])
    assert not two.off, "it left; whoever comes back is tried again"
    bench.matcher.remove(one)
    bench.channels.remove(one)
    assert batch(6) == [("two", "a")]


def test_without_its_new_records_a_batch_is_not_answered(spark: SparkSession, tmp_path: Path) -> None:
    """Files of a long micro-batch that cannot be read are not the channel's fault, and its results must not be missing:
    the batch fails, and is repeated."""
    bench = Bench(spark, tmp_path / "warehouse")
    channel = bench.channel("a", EQUAL)
    bench.matcher.change(channel, {"k": {"kind": "fire"}})
    records = pa.Table.from_pylist(bench.records(random.Random(1)), bench.table.arrow)
    file = tmp_path / "batch.parquet"
    pq.write_table(records, file)
    written = WrittenRecords((str(file),), (file.stat().st_size,), records.num_rows)

    def match() -> pa.Table:
        return bench.matcher.match_new([channel], bench.table, written, bench.views)

    expected = match()
    assert expected.num_rows
    for kept in (False, True):
        while bool(bench.matcher.kept.plans) < kept:
            assert match() == expected
        file.rename(tmp_path / "away.parquet")
        with pytest.raises(Exception, match=r"batch\.parquet"):
            match()
        assert (channel.problem, channel.off, bench.matcher.faults.take()) == ("", {}, [])
        (tmp_path / "away.parquet").rename(file)
        assert match() == expected
