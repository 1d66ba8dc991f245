"""What changes of subscriptions cost: base and delta at 100,000 and a million, channels that share a plan, thresholds.

Times are of the wall and, beside them, of all processors (Java and Python): only those compare on a busy machine.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import psutil
import pyarrow as pa
from benchmarks.cluster_matching import Loaded
from benchmarks.cluster_workload import KIND_AND_AREA, REPORTS, SHELTERS, reports
from benchmarks.measure import Figure, timed

from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.domain.channel import ChannelSpec, Parameter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ABOVE = ChannelSpec(
    "above", "SELECT r.id FROM reports r WHERE r.lat > :least", (Parameter("least", "double"),), None, "reports"
)
_BATCHES = 15


class _Bench:
    """A matcher with reports and shelters."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark, self.rng = spark, random.Random(1)
        self.matcher, self.views = Matcher(spark), DatasetViews(spark)
        shelters = pa.table({"area": [f"a{n}" for n in range(100)], "shelter": [f"s{n}" for n in range(100)]})
        self.views.tables["shelters"] = cast("Any", Loaded(SHELTERS, spark, shelters))
        self.table: Any = Loaded(REPORTS, spark, self.batch(1))
        self.channels: list[RunningChannel] = []

    def channel(self, spec: ChannelSpec, known: RunningChannel | None = None) -> RunningChannel:
        datasets = {"reports": REPORTS, "shelters": SHELTERS}
        validated = validate_query(self.spark, spec, datasets) if known is None else replace(known.validated, spec=spec)
        self.channels.append(RunningChannel(validated))
        return self.channels[-1]

    def batch(self, count: int) -> pa.Table:
        table = pa.Table.from_pylist(reports(count, self.rng))
        table = table.append_column("_sequence", pa.array(range(count), pa.int64()))
        return table.append_column("_arrived", pa.array([0] * count, pa.timestamp("us", "UTC")))

    def match(self, records: pa.Table) -> pa.Table:
        return self.matcher.match_new(self.channels, self.table, records, self.views)

    def warm(self, records: pa.Table) -> None:
        for _ in range(8):
            self.match(records)


def _cpu() -> float:
    process = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in [process, *process.children(recursive=True)])


def _median(call: Callable[[], object], repeat: int = _BATCHES) -> tuple[float, float]:
    """Seconds, and seconds of processors."""
    found = []
    for _ in range(repeat):
        before = _cpu()
        _, seconds = timed(call)
        found.append((seconds, _cpu() - before))
    return statistics.median(s for s, _ in found), statistics.median(c for _, c in found)


def _text(measured: tuple[float, float]) -> str:
    return f"{measured[0] * 1000:,.0f} ms (processors {measured[1] * 1000:,.0f} ms)"


def _pair(n: int) -> dict[str, str]:
    return {"kind": f"k{n % 100}", "area": f"a{n // 100}"}


def _changes(spark: SparkSession, count: int, target: str) -> Iterator[Figure]:
    """Subscriptions of which 10,000 can match; one more at a time."""
    bench = _Bench(spark)
    channel = bench.channel(KIND_AND_AREA)
    bench.matcher.load(channel, {f"{n:07d}": _pair(n) for n in range(count)})
    bench.matcher.fold(0.0)
    records = bench.batch(100)
    bench.warm(records)
    (plan,) = bench.matcher.kept.plans.values()
    plain = _median(lambda: bench.match(records))
    number = [0]

    def change() -> None:
        number[0] += 1
        bench.matcher.change(channel, {f"new{number[0]}": _pair(number[0])}, [f"{number[0]:07d}"])
        bench.match(records)

    change()
    changed = _median(change)
    assert bench.matcher.kept.plans.get(("reports", False)) is plan, "the plan was not kept"
    yield Figure(f"a batch of 100 reports at {count:,} subscriptions", _text(plain), "", None, "≤ 150 ms at a million")
    yield Figure(
        f"one comes, one goes, and the next batch, at {count:,}", _text(changed), _text(plain),
        changed[1] / plain[1], target,
    )  # fmt: skip
    _, folded = timed(lambda: bench.matcher._fold(channel.shape))  # type: ignore[arg-type]
    yield Figure(f"folding them in the background, at {count:,}", f"{folded * 1000:,.0f} ms")


def _shapes(spark: SparkSession) -> Iterator[Figure]:
    """500 channels of ten queries, 20 subscriptions each."""
    bench = _Bench(spark)
    for shape in range(10):
        query = KIND_AND_AREA.query.replace("SELECT r.id", f"SELECT r.id, {shape} AS shape")
        first: RunningChannel | None = None
        for n in range(50):
            spec = replace(KIND_AND_AREA, name=f"c{shape}_{n}", query=query)
            channel = bench.channel(spec, first)
            first = first or channel
            bench.matcher.load(channel, {f"{m}": _pair(bench.rng.randrange(10_000)) for m in range(20)})
    records = bench.batch(100)
    bench.warm(records)

    def anew() -> None:
        bench.matcher.kept.plans.clear()
        bench.match(records)

    planned = _median(anew, 3)
    yield Figure("500 channels of ten queries: plan all anew, and a batch of 100", _text(planned), "", None, "≤ 2 s")
    bench.warm(records)
    yield Figure("the same, a batch of 100", _text(_median(lambda: bench.match(records))), "", None, "≤ 200 ms")


def _thresholds(spark: SparkSession) -> Iterator[Figure]:
    """Distinct thresholds of which a record is above few."""
    bench = _Bench(spark)
    channel = bench.channel(_ABOVE)
    by_count = {}
    for count in (10_000, 20_000):
        bench.matcher.load(channel, {f"{n:06d}": {"least": 34.099 + n / 1e7} for n in range(count)})
        bench.matcher.fold(0.0)
        records = bench.batch(100)
        bench.warm(records)
        by_count[count] = _median(lambda records=records: bench.match(records))  # type: ignore[misc]
    yield Figure(
        "20,000 distinct thresholds, a batch of 100 (beside it 10,000)", _text(by_count[20_000]),
        _text(by_count[10_000]), by_count[20_000][1] / by_count[10_000][1], "≤ 80 ms",
    )  # fmt: skip


def subscriptions(spark: SparkSession, most: int = 1_000_000) -> Iterator[Figure]:
    """All of them. most: the larger number of subscriptions; a million needs `spark.driver.memory` of 4g or so."""
    yield from _thresholds(spark)
    yield from _shapes(spark)
    yield from _changes(spark, 100_000, "≤ 200 ms")
    yield from _changes(spark, most, "≤ 500 ms")
