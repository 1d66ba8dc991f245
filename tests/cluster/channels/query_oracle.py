"""Channel queries compared with DuckDB: every subscription's rows from one statement, and from the query by itself.

What may be continuous is also evaluated as the data cluster does it: on the short lane by a kept plan, batch by batch,
with half of the subscriptions in the base and half in the delta and a restart in the middle; and on the long lane, from
files. `python -m tests.cluster.channels.query_oracle QUERIES [SEED [SUBSCRIPTIONS]]` draws queries, data and values; a
case is one query with the values of one subscription.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from sqlglot import exp

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_tree import parse_query
from nearcast.cluster.channels.query_validation import QueryError, validate_query
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.channels.statement import levels_in, result_sql, subscription_table
from nearcast.cluster.channels.validated_channel import ValidatedChannel
from nearcast.cluster.datasets.schema import dataset_ddl, parse_ddl
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.domain.channel import ChannelSpec, Parameter, check_values
from nearcast.domain.dataset import DatasetSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPORTS = DatasetSpec(
    "reports",
    "id STRING, kind STRING, area STRING, severity INT, score DOUBLE, n DOUBLE, lat DOUBLE, lon DOUBLE, at TIMESTAMP, "
    "day DATE, place STRUCT<lat: DOUBLE, lon: DOUBLE>",
    "fed.reports",
)
SHELTERS = DatasetSpec("shelters", "name STRING, area STRING, rooms INT, lat DOUBLE, lon DOUBLE")
VISITS = DatasetSpec("visits", "who STRING, area STRING, at TIMESTAMP", "fed.visits")
DATASETS = {spec.name: spec for spec in (REPORTS, SHELTERS, VISITS)}
TYPES = {
    "kind": "string", "kind2": "string", "area": "string", "pattern": "string", "low": "int", "high": "int",
    "score": "double", "lat": "double", "lon": "double", "radius": "double", "since": "timestamp", "day": "date",
    "flag": "boolean", "big": "bigint",
}  # fmt: skip
KINDS, AREAS = ("fire", "flood", "quake"), ("north", "south", "east")
_START = datetime(2026, 3, 1, tzinfo=UTC)


class _Loaded:
    """A dataset whose frame is given."""

    def __init__(self, spec: DatasetSpec, spark: SparkSession, table: pa.Table) -> None:
        self.spec, self.version, self.schema = spec, 0, parse_ddl(dataset_ddl(spec), spec.name)
        self._frame = spark.createDataFrame(table)

    def frame(self) -> DataFrame:
        return self._frame


class World:
    """Rows of all datasets, in Spark and in DuckDB."""

    def __init__(self, spark: SparkSession, rng: random.Random, rows: int = 40) -> None:
        self.spark = spark.newSession()
        self.spark.sql(grid.DISTANCE)
        self.duck = duckdb.connect()
        self.duck.execute("SET TimeZone = 'UTC'")
        self.duck.execute(
            """CREATE MACRO distance(a, b, c, d) AS 2 * 6371008.8 * asin(least(1.0, sqrt(pow(sin(radians(c - a) / 2), 2)
            + cos(radians(a)) * cos(radians(c)) * pow(sin(radians(d - b) / 2), 2))))"""
        )
        self.tables = {"reports": _reports(rng, rows), "shelters": _shelters(rng), "visits": _visits(rng)}
        self._views, self.kept = DatasetViews(self.spark), 0
        for name, table in self.tables.items():
            self._views.tables[name] = cast("Any", _Loaded(DATASETS[name], self.spark, table))
            self.duck.register(name, table)
            self.spark.createDataFrame(table).createOrReplaceTempView(name)

    def subscriptions(self, channel: ChannelSpec, rng: random.Random, count: int) -> dict[str, dict[str, Any]]:
        drawn = ({p.name: _value(p.name, rng) for p in channel.parameters} for _ in range(count))
        return {f"s{n}": check_values(channel, row) for n, row in enumerate(drawn)}

    def answers(
        self, channel: ValidatedChannel, wanted: Mapping[str, Mapping[str, Any]], reports: str = "reports"
    ) -> dict[str, list[str]]:
        """The rows of each subscription, from one statement."""
        table, keys = subscription_table(channel, wanted.values()), list(wanted)
        self.spark.createDataFrame(table).createOrReplaceTempView("subs")
        views = {name: name for name in DATASETS} | {"reports": reports}
        text = result_sql(channel, views.__getitem__, "subs", levels_in(channel, table))
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
        """The rows of each subscription, from files that executors wrote."""
        with tempfile.TemporaryDirectory() as folder:
            table = self.tables["reports"]
            for n, part in enumerate((table.slice(0, table.num_rows // 3), table.slice(table.num_rows // 3))):
                pq.write_table(part, f"{folder}/{n}.parquet")
            schema = parse_ddl(dataset_ddl(REPORTS), "reports")
            self.spark.read.schema(schema).parquet(folder).createOrReplaceTempView("reports_files")
            running, matcher = self._running(channel, wanted, in_base=1)
            views = {name: name for name in DATASETS} | {"reports": "reports_files"}
            found: dict[str, list[str]] = {key: [] for key in wanted}
            _collect(matcher.match([running], views), found)
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
    channel = validate_query(world.spark, channel_of(query), DATASETS)
    wanted = world.subscriptions(channel.spec, rng, subscriptions)
    found = world.answers(channel, wanted)
    for key, row in wanted.items():
        expected = world.expected(channel, row)
        same = found[key] == expected if channel.statement.position else Counter(found[key]) == Counter(expected)
        assert same, f"{query}\nfor {row}:\n{found[key]}\ninstead of\n{expected}"
    cases = len(wanted)
    try:
        continuous = validate_query(world.spark, channel_of(query, None, "reports"), DATASETS)
    except QueryError:
        return cases
    for lane, answers in (
        ("short", world.short_lane(continuous, wanted)),
        ("long", world.long_lane(continuous, wanted)),
    ):
        for key in wanted:
            assert Counter(answers[key]) == Counter(found[key]), (
                f"{lane} lane: {query}\nfor {wanted[key]}:\n{answers[key]}\ninstead of\n{found[key]}"
            )
    return cases


def draw_query(rng: random.Random) -> str:
    """A query over the three datasets. Ordered ones have an order without ties."""
    one = rng.choice
    condition = _condition(rng)
    match rng.randrange(12):
        case 0:
            return f"SELECT r.id, r.kind FROM reports r WHERE {condition}"
        case 1:
            side = one(("JOIN", "LEFT JOIN", "RIGHT JOIN"))
            extra = one(("", " AND s.rooms > :low", " AND s.name <> :area"))
            where = f"({condition} OR r.id IS NULL)"
            return f"SELECT r.id, s.name FROM reports r {side} shelters s ON r.area = s.area{extra} WHERE {where}"
        case 2:
            return (
                f"SELECT r.kind, count(*) AS n, max(r.severity) AS m FROM reports r WHERE {condition} GROUP BY r.kind"
            )
        case 3:
            return f"SELECT count(*) AS n, sum(r.severity) AS m FROM reports r WHERE {condition}"
        case 4:
            return f"SELECT DISTINCT r.kind, r.area FROM reports r WHERE {condition}"
        case 5:
            order = f"ORDER BY r.severity DESC, r.id LIMIT {rng.randrange(1, 5)}"
            return f"SELECT r.id, r.severity FROM reports r WHERE {condition} {order}"
        case 6:
            other = _condition(rng)
            return f"SELECT r.id FROM reports r WHERE {condition} UNION ALL SELECT r.id FROM reports r WHERE {other}"
        case 7:
            return (
                f"WITH q AS (SELECT r.area, count(*) AS n FROM reports r WHERE {condition} GROUP BY r.area) "
                f"SELECT s.name, q.n FROM shelters s {one(('JOIN', 'LEFT JOIN'))} q ON q.area = s.area "
                "WHERE s.rooms >= :low"
            )
        case 8:
            negation = one(("", "NOT "))
            return (
                f"SELECT r.id FROM reports r WHERE {condition} AND {negation}EXISTS "
                "(SELECT 1 FROM shelters s WHERE s.area = r.area AND s.rooms > :high)"
            )
        case 9:
            return (
                "SELECT q.id, q.place FROM (SELECT r.id, row_number() OVER (PARTITION BY r.kind ORDER BY r.id) AS "
                f"place FROM reports r WHERE {condition}) q WHERE q.place <= 2"
            )
        case 10:
            near = "distance(r.lat, r.lon, s.lat, s.lon) <= 900"
            return f"SELECT r.id, s.name FROM reports r JOIN shelters s ON {near} WHERE {condition}"
        case _:
            return (
                f"SELECT r._sequence, r.id, count(s.name) AS n FROM reports r LEFT JOIN shelters s ON s.area = r.area "
                f"AND s.rooms > :low WHERE {condition} GROUP BY r._sequence, r.id"
            )


def _condition(rng: random.Random, depth: int = 0) -> str:
    if depth < 2 and rng.random() < 0.4:
        word = rng.choice((" AND ", " AND ", " OR "))
        return "(" + word.join(_condition(rng, depth + 1) for _ in range(2)) + ")"
    return rng.choice(
        (
            "r.kind = :kind", "r.area = :area", "r.severity > :low", "r.severity BETWEEN :low AND :high",
            "r.kind IN (:kind, :kind2)", "r.kind LIKE :pattern", "distance(r.lat, r.lon, :lat, :lon) <= :radius",
            ":radius > distance(:lat, :lon, r.place.lat, r.place.lon)", "r.at >= :since", "r.day = :day",
            "r.severity + :low < r.score", "r.severity IS NULL", "r.score < :score", "(r.severity > 2) = :flag",
            "r.severity <> :big", "NOT r.kind = :kind", "coalesce(r.severity, :low) >= :low",
            "distance(r.lat, r.n, :lat, :lon) < :radius",
        )
    )  # fmt: skip


def _reports(rng: random.Random, rows: int) -> pa.Table:
    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.08 else value

    made = []
    for n in range(rows):
        lat, lon = 0.02 * rng.random(), 0.02 * rng.random()
        made.append(
            {
                "id": f"r{n}", "kind": maybe(rng.choice(KINDS)), "area": maybe(rng.choice(AREAS)),
                "severity": maybe(rng.randrange(8)), "score": maybe(rng.randrange(16) / 2), "n": lon,
                "lat": maybe(lat), "lon": lon, "at": maybe(_START + timedelta(microseconds=rng.randrange(10**11))),
                "day": maybe(date(2026, 3, rng.randrange(1, 4))), "place": {"lat": lat, "lon": lon},
                "_sequence": n + 1, "_arrived": _START,
            }
        )  # fmt: skip
    place = pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
    time = pa.timestamp("us", "UTC")
    schema = pa.schema(
        [(name, pa.string()) for name in ("id", "kind", "area")] + [("severity", pa.int32())]
        + [(name, pa.float64()) for name in ("score", "n", "lat", "lon")]
        + [("at", time), ("day", pa.date32()), ("place", place), ("_sequence", pa.int64()), ("_arrived", time)]
    )  # fmt: skip
    return pa.Table.from_pylist(made, schema)


def _shelters(rng: random.Random) -> pa.Table:
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("area", pa.string()),
            ("rooms", pa.int32()),
            ("lat", pa.float64()),
            ("lon", pa.float64()),
        ]
    )
    areas = (*AREAS, "west", None)
    made = [
        {"name": f"s{n}", "area": rng.choice(areas), "rooms": rng.randrange(6), "lat": 0.02 * rng.random(), "lon": 0.01}
        for n in range(7)
    ]
    return pa.Table.from_pylist(made, schema)


def _visits(rng: random.Random) -> pa.Table:
    time = pa.timestamp("us", "UTC")
    schema = pa.schema(
        [("who", pa.string()), ("area", pa.string()), ("at", time), ("_sequence", pa.int64()), ("_arrived", time)]
    )
    made = [
        {"who": f"u{n}", "area": rng.choice(AREAS), "at": _START, "_sequence": n + 1, "_arrived": _START}
        for n in range(6)
    ]
    return pa.Table.from_pylist(made, schema)


def _value(name: str, rng: random.Random) -> Any:
    match TYPES[name]:
        case "string":
            return rng.choice({"pattern": ("f%", "%o%", "q_ake", "x"), "area": AREAS}.get(name, (*KINDS, "it's -- ;")))
        case "double":
            return rng.choice((100.0, 700.0, 1500.0)) if name == "radius" else rng.choice((0.005, 0.01, 4.0))
        case "timestamp":
            return (_START + timedelta(microseconds=rng.randrange(10**11))).isoformat()
        case "date":
            return f"2026-03-0{rng.randrange(1, 5)}"
        case "boolean":
            return rng.random() < 0.5
        case _:
            return rng.randrange(8)


def _canonical(row: Mapping[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in row.items()}, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float | Decimal):
        return float(f"{float(value):.10g}")
    return {name: _plain(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def main(arguments: Sequence[str]) -> None:
    from nearcast.cluster.spark_session import spark_session

    queries, seed, subscriptions = (int(text) for text in [*arguments, *("100", "1", "50")[len(arguments) :]])
    rng, spark = random.Random(seed), spark_session("oracle", "local[2]")
    world, cases, wrong, refused = World(spark, rng), 0, 0, 0
    for n in range(queries):
        if n % 50 == 49:
            world = World(spark, rng)
        query = draw_query(rng)
        try:
            cases += compare(world, query, rng, subscriptions)
        except QueryError as error:
            refused += 1
            print(f"refused: {query}\n  {str(error).splitlines()[0]}")
        except AssertionError as error:
            wrong += 1
            print(f"WRONG: {error}")
        if n % 10 == 9:
            print(f"{n + 1} queries, {cases} cases, {wrong} queries wrong, {world.kept} plans kept", flush=True)
    print(f"{queries} queries, {cases} cases, {wrong} queries wrong, {refused} refused; seed {seed}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
