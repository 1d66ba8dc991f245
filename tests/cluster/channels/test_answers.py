"""Each shape of query that channels accept, compared with DuckDB; those whose answer is not defined are refused."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.cluster.channels.oracle_data import draw_schema
from tests.cluster.channels.oracle_queries import draw_query
from tests.cluster.channels.query_oracle import World, channel_of, compare

from nearcast.cluster.channel_trials import explain_channel, try_channel
from nearcast.cluster.channels.query_errors import QueryError
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.verification import verify_statement

pytestmark = pytest.mark.xdist_group("spark")

SHAPES = {
    "right join": "SELECT s.name, r.id FROM reports r RIGHT JOIN shelters s ON r.area = s.area AND r.kind = :kind",
    "right join, filtered": (
        "SELECT s.name, r.id FROM reports r RIGHT JOIN shelters s ON r.area = s.area WHERE s.rooms > :low"
    ),
    "full join": (
        "SELECT s.name, r.id FROM reports r FULL JOIN shelters s ON r.area = s.area WHERE coalesce(s.rooms, 9) > :low"
    ),
    "a WITH that hides a dataset": (
        "WITH reports AS (SELECT * FROM shelters) SELECT r.name FROM reports r WHERE r.area = :area"
    ),
    "a WITH within a WITH": (
        "WITH q AS (WITH reports AS (SELECT name AS id, area FROM shelters) SELECT id, area FROM reports) "
        "SELECT q.id AS s, r.id FROM q JOIN reports r ON r.area = q.area WHERE r.kind = :kind"
    ),
    "a column named as a lambda's variable": (
        "SELECT r.id FROM reports r WHERE distance(r.lat, r.n, :lat, :lon) <= :radius"
    ),
    "a threshold": "SELECT r.id FROM reports r WHERE r.severity > :low",
    "a threshold above": "SELECT id FROM reports WHERE :high >= reports.severity AND kind <> 'quake'",
    "a threshold of another type": "SELECT r.id FROM reports r WHERE r.severity < :score",
    "a threshold of a time": "SELECT r.id FROM reports r WHERE r.at >= :since AND r.day <= :day",
    "a threshold beside joins": (
        "SELECT r.id, s.name FROM reports r LEFT JOIN shelters s ON s.area = r.area AND s.rooms > :low "
        "WHERE r.severity > :low"
    ),
    "a threshold of groups": "SELECT r.kind, count(*) AS n FROM reports r WHERE r.score >= :score GROUP BY r.kind",
    "between": "SELECT r.id FROM reports r WHERE r.severity BETWEEN :low AND :high",
    "in": "SELECT r.id FROM reports r WHERE r.kind IN (:kind, :kind2)",
    "or": "SELECT r.id FROM reports r WHERE r.kind = :kind OR r.area = :area",
    "like": "SELECT r.id FROM reports r WHERE r.kind LIKE :pattern",
    "a count within a radius": (
        "SELECT count(*) AS n FROM reports r WHERE distance(r.lat, r.lon, :lat, :lon) <= :radius"
    ),
    "top-k within a radius": (
        "SELECT id, round(distance(lat, lon, :lat, :lon)) AS d FROM reports "
        "WHERE distance(lat, lon, :lat, :lon) <= :radius ORDER BY d, id LIMIT 3"
    ),
    "distinct within a radius": ("SELECT DISTINCT kind FROM reports WHERE distance(lat, lon, :lat, :lon) <= :radius"),
    "two radius conditions": (
        "SELECT r.id, s.name FROM reports r JOIN shelters s ON distance(r.lat, r.lon, s.lat, s.lon) < 900 "
        "WHERE r.kind = 'fire' AND distance(r.lat, r.lon, :lat, :lon) <= :radius"
    ),
    "nested fields": (
        "SELECT id FROM reports WHERE (distance(place.lat, place.lon, :lat, :lon) <= :radius) AND severity > 1"
    ),
    "dates and times": "SELECT r.id, r.at, r.day FROM reports r WHERE r.day >= :day AND r.at < :since",
    "a comma": "SELECT r.id, s.name FROM reports r, shelters s WHERE r.area = s.area AND s.rooms > :low",
    "no parameters": "SELECT r.id FROM reports r WHERE r.severity > 3",
    "an order": "SELECT r.id, r.severity AS s FROM reports r WHERE r.kind = :kind ORDER BY s DESC NULLS LAST, r.id",
    "an unnamed column and a comment": (
        "SELECT r.id, r.severity - :low FROM reports r WHERE r.kind = :kind -- all of them"
    ),
    "a union": "SELECT id FROM reports WHERE kind = :kind UNION ALL SELECT name AS id FROM shelters WHERE area = :area",
    "a union with a radius": (
        "SELECT id FROM reports WHERE distance(lat, lon, :lat, :lon) <= :radius UNION ALL "
        "SELECT id FROM reports WHERE kind = :kind"
    ),
    "a star": "SELECT * FROM shelters WHERE rooms > :low",
    "names like those inside": (
        "SELECT nc__.nc__key, nc__.nc__p0 FROM (SELECT id AS nc__key, kind AS nc__p0 FROM reports) nc__ "
        "WHERE nc__.nc__p0 = :kind"
    ),
    "a subquery": "SELECT r.id FROM reports r WHERE r.area IN (SELECT s.area FROM shelters s WHERE s.rooms > :low)",
    "grouped by all": (
        "SELECT r.kind, count(*) + :low AS n FROM reports r WHERE r.severity <> :high GROUP BY ALL "
        "HAVING count(*) > :low"
    ),
}
BATCH_DEPENDENT = {
    "W8": (
        "SELECT v._sequence, count(*) AS n FROM reports r JOIN visits v ON v.area = r.area WHERE r.kind = :kind "
        "GROUP BY v._sequence"
    ),
    "W9": "SELECT s.name, r.id FROM shelters s LEFT JOIN reports r ON r.area = s.area AND r.kind = :kind",
    "W10": (
        "SELECT s.name FROM shelters s WHERE s.area = :area AND NOT EXISTS "
        "(SELECT 1 FROM reports r WHERE r.area = s.area)"
    ),
    "a limit": "SELECT r.id FROM reports r WHERE r.kind = :kind LIMIT 1",
    "distinct": "SELECT DISTINCT r.kind FROM reports r WHERE r.kind = :kind",
    "a WITH used twice": (
        "WITH q AS (SELECT * FROM reports) SELECT a.id FROM q a JOIN q b ON a.kind = b.kind WHERE a.kind = :kind"
    ),
    "a window": "SELECT r.id, row_number() OVER (ORDER BY r.id) AS n FROM reports r WHERE r.kind = :kind",
    "a union without it": "SELECT r.id FROM reports r WHERE r.kind = :kind UNION ALL SELECT name FROM shelters",
}


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> World:
    return World(spark, random.Random(14))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_subscription_gets_what_its_own_query_would_give(world: World, shape: str) -> None:
    compare(world, SHAPES[shape], random.Random(3))


@settings(max_examples=12, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(rng=st.randoms(use_true_random=False))
def test_drawn_schemas_and_queries(spark: SparkSession, rng: random.Random) -> None:
    world = World(spark, rng, draw_schema(rng), rows=20)
    with contextlib.suppress(QueryError):  # some of what is drawn is refused
        compare(world, draw_query(rng, world.schema), rng)


def test_the_distance_of_an_unknown_point_is_unknown(world: World) -> None:
    """Within a radius around the globe is every point, but not one that is null or no number."""
    where = "distance(r.lat, r.lon, 10D, 20D)"
    rows = world.spark.sql(
        f"SELECT r.n, {where} AS d, {where} <= 3e7D AS near FROM VALUES (1, 10D, 20D), (2, NULL, 20D), "
        "(3, 10D, double('NaN')), (4, 10D, 21D) AS r (n, lat, lon) ORDER BY n"
    ).collect()
    assert [row.near for row in rows] == [True, None, False, True]
    assert rows[0].d == 0
    assert rows[3].d == pytest.approx(109_505, abs=50)


@pytest.mark.parametrize("shape", BATCH_DEPENDENT)
def test_a_continuous_query_that_depends_on_batches_is_refused(world: World, shape: str) -> None:
    with pytest.raises(QueryError, match=r"in one batch|once: only new|come again with every batch"):
        validate_query(world.spark, channel_of(BATCH_DEPENDENT[shape], None, "reports"), world.datasets)


def test_the_statement_is_verified_on_generated_rows(world: World) -> None:
    query = "SELECT r.id FROM reports r WHERE r.kind = :kind OR r.severity > :low"
    channel = validate_query(world.spark, channel_of(query), world.datasets)
    verify_statement(world.spark, channel, world.datasets)
    wrong = replace(channel.statement, template=channel.statement.template.replace(" OR ", " AND "))
    with pytest.raises(QueryError, match="would answer differently"):
        verify_statement(world.spark, replace(channel, statement=wrong), world.datasets)


def test_a_channel_is_tried_out_and_explained(world: World) -> None:
    query = "SELECT r.id, r.severity * :low AS n FROM reports r WHERE r.kind = :kind ORDER BY r.id DESC"
    channel = validate_query(world.spark, channel_of(query), world.datasets)
    records = world.tables["reports"].drop_columns(["_sequence", "_arrived"]).slice(0, 20)
    rows = try_channel(world.spark, channel, world.datasets, {"reports": records}, {"kind": "fire", "low": 2})
    expected = [
        {"id": row["id"], "n": None if row["severity"] is None else 2 * row["severity"]}
        for row in records.to_pylist()
        if row["kind"] == "fire"
    ]
    assert rows == sorted(expected, key=lambda row: row["id"], reverse=True)
    assert "Join" in explain_channel(world.spark, channel_of(query), world.datasets)
