"""Channel queries compared with DuckDB: every subscription's rows from one statement, and from the query by itself.

What may be continuous is also evaluated as the data cluster does it: on the short lane by a kept plan, batch by batch,
with half of the subscriptions in the base and half in the delta and a restart in the middle; and on the long lane, by
one from files. `python -m tests.cluster.channels.query_oracle QUERIES [SEED [SUBSCRIPTIONS [SECONDS]]]` draws schemas,
data, queries and values; a case is one query with the values of one subscription.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlglot import exp
from tests.cluster.channels.oracle_data import PLAIN, TYPES, DrawnSchema, draw_schema, draw_tables, draw_value
from tests.cluster.channels.oracle_queries import draw_query

from nearcast.cluster.channels import grid, ranges
from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_errors import QueryError
from nearcast.cluster.channels.query_tree import parse_query
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.channels.statement import ValidatedChannel, levels_in, result_sql, subscription_table
from nearcast.cluster.datasets.dataset_tables import WrittenRecords
from nearcast.cluster.datasets.schema import dataset_ddl, parse_ddl
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.domain.channel import ChannelSpec, Parameter, check_values
from nearcast.domain.dataset import DatasetSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUERIES_OF_A_WORLD = 20


class _Loaded:
    """A dataset whose frame is given."""

    def __init__(self, spec: DatasetSpec, spark: SparkSession, table: pa.Table) -> None:
        self.spec, self.version, self.schema = spec, 0, parse_ddl(dataset_ddl(spec), spec.name)
        self._spark, self._table, self._frame = spark, table, spark.createDataFrame(table)

    def frame(self) -> DataFrame:
        return self._frame

    def frame_of_keys(self, keys: pa.ChunkedArray) -> DataFrame | None:
        """As of a large keyed dataset, with any number of rows of a key."""
        return self._spark.createDataFrame(self._table.filter(pc.is_in(self._table[self.spec.key], value_set=keys)))


class World:
    """Rows of all datasets, in Spark and in DuckDB."""

    def __init__(self, spark: SparkSession, rng: random.Random, schema: DrawnSchema = PLAIN, rows: int = 40) -> None:
        self.spark, self.schema, self.datasets = spark.newSession(), schema, schema.datasets
        self.spark.sql(grid.DISTANCE)
        self.duck = duckdb.connect()
        self.duck.execute("SET TimeZone = 'UTC'")
        self.duck.execute(
            """CREATE MACRO distance(a, b, c, d) AS CASE WHEN isnan(a + b + c + d) THEN 'NaN'::DOUBLE
            WHEN a + b + c + d IS NOT NULL THEN 2 * 6371008.8 * asin(least(1.0, sqrt(pow(sin(radians(c - a) / 2), 2)
            + cos(radians(a)) * cos(radians(c)) * pow(sin(radians(d - b) / 2), 2)))) END"""
        )
        self.tables = draw_tables(schema, rng, rows)
        self._views, self.kept, self.kept_long = DatasetViews(self.spark), 0, 0
        for name, table in self.tables.items():
            self._views.tables[name] = cast("Any", _Loaded(self.datasets[name], self.spark, table))
            self.duck.register(name, table)
            self.spark.createDataFrame(table).createOrReplaceTempView(name)

    def subscriptions(self, channel: ChannelSpec, rng: random.Random, count: int) -> dict[str, dict[str, Any]]:
        drawn = ({p.name: draw_value(p.name, rng, self.schema.odd) for p in channel.parameters} for _ in range(count))
        return {f"s{n}": check_values(channel, row) for n, row in enumerate(drawn)}

    def answers(
        self, channel: ValidatedChannel, wanted: Mapping[str, Mapping[str, Any]], reports: str = "reports"
    ) -> dict[str, list[str]]:
        """The rows of each subscription, from one statement."""
        table, keys = subscription_table(channel, wanted.values()), list(wanted)
        self.spark.createDataFrame(table).createOrReplaceTempView("subs")
        views = {name: name for name in self.datasets} | {"reports": reports}
        text = result_sql(channel, views, "subs", levels_in(channel, table))
        rows = self.spark.sql(text).toArrow().to_pylist()
        found: dict[str, list[str]] = {key: [] for key in wanted}
        for row in sorted(rows, key=lambda row: row["position"] or 0):
            found[keys[row["number"]]].append(_canonical(json.loads(row["row"])))
        return found

    def expected(self, channel: ValidatedChannel, row: Mapping[str, Any]) -> list[str]:
        """The rows of one subscription, by DuckDB."""
        types = {p.name: p.type for p in channel.spec.parameters}
        tree = parse_query(channel.spec.query).tree.copy()
        for place in list(tree.find_all(exp.Placeholder)):
            value = exp.cast(
                exp.convert(row[place.name]), {"timestamp": "timestamptz"}.get(types[place.name], types[place.name])
            )
            place.replace(value)
        found = self.duck.execute(tree.sql("duckdb"))
        labels = [label for label, _ in channel.columns]
        return [_canonical(dict(zip(labels, values, strict=True))) for values in found.fetchall()]

    def short_lane(self, channel: ValidatedChannel, wanted: Mapping[str, dict[str, Any]]) -> dict[str, list[str]]:
        """The rows of each subscription, from batches, by a data cluster that is started again in the middle."""
        table = self.tables["reports"]
        cuts = [0, table.num_rows // 4, table.num_rows // 2, table.num_rows - 1, table.num_rows]
        batches = [table.slice(low, high - low) for low, high in pairwise(cuts)]
        found: dict[str, list[str]] = {key: [] for key in wanted}
        for run, some in enumerate((batches[:2], batches[2:])):
            running, matcher = self._running(channel, wanted, in_base=run)
            for batch in some:
                matches = matcher.match_new([running], self._loaded("reports"), batch, self._views)
                _collect(matches, found)
            self.kept += any(plan.bases for plan in matcher.kept.plans.values())
            matcher.remove(running)
        return found

    def long_lane(self, channel: ValidatedChannel, wanted: Mapping[str, dict[str, Any]]) -> dict[str, list[str]]:
        """The rows of each subscription, from files that executors wrote: batches of two, one and three files."""
        table = self.tables["reports"]
        cuts = [table.num_rows * n // 6 for n in range(7)]
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for low, high in pairwise(cuts):
                files.append((f"{folder}/{low}-{high}.parquet", table.slice(low, high - low)))
                pq.write_table(files[-1][1], files[-1][0])
            running, matcher = self._running(channel, wanted, in_base=1)
            found: dict[str, list[str]] = {key: [] for key in wanted}
            for batch in (files[:2], files[2:3], files[3:]):
                paths, rows = [path for path, _ in batch], sum(part.num_rows for _, part in batch)
                written = WrittenRecords(tuple(paths), tuple(Path(path).stat().st_size for path in paths), rows)
                _collect(matcher.match_new([running], self._loaded("reports"), written, self._views), found)
            self.kept_long += any(plan.bases for plan in matcher.kept.plans.values())
            matcher.remove(running)
            return found

    def _running(
        self, channel: ValidatedChannel, wanted: Mapping[str, dict[str, Any]], in_base: int
    ) -> tuple[RunningChannel, Matcher]:
        """Every second subscription is in the base, the others in the delta, and one is gone."""
        running, matcher = RunningChannel(channel), Matcher(self.spark)
        rows = list(wanted.items())
        matcher.load(running, dict(rows[in_base::2]) | {"gone": dict(rows[0][1])})
        assert running.shape is not None
        with patch.object(ranges, "_FEWEST", 4):  # so that few subscriptions are in several buckets
            matcher._fold(running.shape)
        matcher.change(running, dict(rows[1 - in_base :: 2]), ["gone"])
        # As if it had been evaluated for a while: the plan is kept from the first batch on.
        running.shape.unchanged_batches, running.shape.inputs_version = 2, [
            self._views.version(name) for name in channel.datasets if name != "reports"
        ]  # fmt: skip
        return running, matcher

    def _loaded(self, name: str) -> Any:
        return self._views.tables[name]


def _collect(matches: pa.Table, found: dict[str, list[str]]) -> None:
    for row in matches.to_pylist():
        found[row["key"]].append(_canonical(json.loads(row["row"])))


def channel_of(query: str, period: float | None = 1.0, new: str = "") -> ChannelSpec:
    names = parse_query(query).parameters
    return ChannelSpec("c", query, tuple(Parameter(name, TYPES[name]) for name in names), period, new)


def compare(world: World, query: str, rng: random.Random, subscriptions: int = 8) -> int:
    """Compare one query for some subscriptions; returns how many cases that were. AssertionError when one is wrong."""
    channel = validate_query(world.spark, channel_of(query), world.datasets)
    wanted = world.subscriptions(channel.spec, rng, subscriptions)
    found = world.answers(channel, wanted)
    for key, row in wanted.items():
        expected = world.expected(channel, row)
        same = found[key] == expected if channel.statement.position else Counter(found[key]) == Counter(expected)
        assert same, f"{query}\nfor {row}: {_difference(found[key], expected)}"
    cases = len(wanted)
    try:
        continuous = validate_query(world.spark, channel_of(query, None, "reports"), world.datasets)
    except QueryError:
        return cases
    for lane, answers in (
        ("short", world.short_lane(continuous, wanted)),
        ("long", world.long_lane(continuous, wanted)),
    ):
        for key in wanted:
            difference = _difference(answers[key], found[key])
            assert Counter(answers[key]) == Counter(found[key]), (
                f"{lane} lane: {query}\nfor {wanted[key]}: {difference}"
            )
    return cases


def _canonical(row: Mapping[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in row.items()}, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, float | Decimal):
        return float(f"{float(value):.10g}") + 0.0
    return {name: _plain(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def _difference(found: list[str], expected: list[str]) -> str:
    more, less = Counter(found) - Counter(expected), Counter(expected) - Counter(found)
    if not more and not less:
        return f"in the order {found} instead of {expected}"
    return f"too much: {sorted(more.elements())[:5]}; missing: {sorted(less.elements())[:5]}"


def main(arguments: Sequence[str]) -> None:
    from nearcast.cluster.spark_session import spark_session

    given = [int(text) for text in arguments]
    queries, seed, subscriptions, seconds = [*given, *(100, 1, 50, 3600)[len(given) :]]
    rng, spark = random.Random(seed), spark_session("oracle", "local[2]")
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while counts["queries"] < queries and time.monotonic() < end:
        if counts["queries"] % _QUERIES_OF_A_WORLD == 0:
            world = World(spark, rng, draw_schema(rng))
        query = draw_query(rng, world.schema)
        counts["queries"] += 1
        kept, kept_long = world.kept, world.kept_long
        try:
            counts["cases"] += compare(world, query, rng, subscriptions)
            counts["kept plans"] += world.kept > kept
            counts["kept plans, long lane"] += world.kept_long > kept_long
        except Exception as error:
            counts[kind := _kind_of(error)] += 1
            print(f"{kind}: {query}\n  {str(error) if kind == 'wrong' else str(error).splitlines()[0]}")
        if counts["queries"] % 10 == 0:
            print(f"seed {seed}: {dict(counts)}", flush=True)
    print(f"done, seed {seed}: {dict(counts)}")
    sys.exit(1 if counts["wrong"] or counts["failed"] else 0)


def _kind_of(error: Exception) -> str:
    if isinstance(error, AssertionError):
        return "wrong"
    if isinstance(error, QueryError):
        return "refused"
    return "not in DuckDB" if isinstance(error, duckdb.Error) else "failed"


if __name__ == "__main__":
    main(sys.argv[1:])
