"""Queries validated by Spark's own parser and optimizer; cells on the globe."""

from __future__ import annotations

import random

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.cluster.emergency import CHANNELS, DATASETS, metres

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.query_errors import QueryError
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.domain.channel import ChannelSpec, Parameter

pytestmark = pytest.mark.xdist_group("spark")
BY_NAME = {dataset.name: dataset for dataset in DATASETS}


def make(query: str, period: float | None = None, **parameters: str) -> ChannelSpec:
    return ChannelSpec("c", query, tuple(Parameter(n, t) for n, t in parameters.items()), period, "reports")


@pytest.mark.parametrize(
    ("channel", "place", "words"),
    [
        (
            make("SELECT r.id FRM reports r\nWHERE r.kind = :kind", kind="string"),
            16,
            "Syntax error at or near 'reports'",
        ),
        (make("SELECT r.id FROM reports r\nWHERE r.kind = :kind AND r.colour = 1", kind="string"), 52, "`r`.`colour`"),
        (
            make("SELECT r.id FROM reports r WHERE r.severity > :kind", kind="string"),
            46,
            ":kind is string but is used as",
        ),
        (make("SELECT r.id FROM report r WHERE r.kind = :kind", kind="string"), 17, "there is no dataset 'report'"),
        (
            make("SELECT r.id FROM reports r WHERE r.kind = :kind"),
            42,
            "parameter :kind is not declared; declared: none",
        ),
        (make("SELECT r.id FROM reports r", kind="string"), None, "parameter 'kind' is declared, but"),
        (make("SELECT id, foo(id) FROM reports WHERE kind = :kind", kind="string"), 11, "foo"),
        (
            make("SELECT r.id, r.id FROM reports r WHERE r.kind = :kind", kind="string"),
            None,
            "two columns are named 'id'",
        ),
        (make("SELECT count(*) n FROM reports WHERE kind = :kind", kind="string"), None, "aggregate in a continuous"),
        (make("SELECT s.name FROM shelters s WHERE s.name = :kind", kind="string"), None, "new is 'reports'"),
        (
            make("SELECT r.id, r.kind AS ID FROM reports r WHERE r.kind = :x", x="string"),
            None,
            "columns are named 'ID'",
        ),
        (make("SELECT r.id FROM reports r, shelters s WHERE r.kind = :kind", kind="string"), None, "a cross join"),
        (make("SELECT id FROM reports WHERE kind = :k ORDER BY 9999999999999999999", k="string"), None, "a constant"),
        (make("SELECT id FROM reports WHERE kind = :k ORDER BY 1.5", k="string"), None, "ORDER BY 1.5, a constant"),
    ],
)
def test_a_wrong_query_is_refused_at_its_place(
    spark: SparkSession, channel: ChannelSpec, place: int | None, words: str
) -> None:
    with pytest.raises(QueryError) as caught:
        validate_query(spark, channel, BY_NAME)
    assert words in str(caught.value)
    assert caught.value.offset == place


def test_every_channel_of_the_emergency_application_is_valid(spark: SparkSession) -> None:
    statements = {channel.name: validate_query(spark, channel, BY_NAME).statement for channel in CHANNELS}
    assert statements["near_place"].radius_parameters == statements["near_me"].radius_parameters == ("radius",)


def test_points_within_a_radius_meet_in_exactly_one_cell(spark: SparkSession) -> None:
    """Anywhere on the globe: at the poles, at the date line, with small and large radii."""
    rng, pairs = random.Random(5), []
    for n in range(1500):
        radius = 10 ** rng.uniform(1, 7.3)
        lat = rng.choice((rng.uniform(-90, 90), 90 - rng.uniform(0, 0.01), -90 + rng.uniform(0, 0.3)))
        lon = rng.choice((rng.uniform(-180, 180), 180 - rng.uniform(0, 0.001)))
        reach = min(radius / 111_000, 60)
        other = min(max(lat + rng.uniform(-reach, reach), -90.0), 90.0)
        turned = rng.choice((lon + rng.uniform(-1.5, 1.5) * reach / max(0.02, 1 - abs(lat) / 90), -lon, lon + 180))
        pairs.append((n, lat, lon, other, (turned + 180) % 360 - 180, radius, grid.level_of(radius)))
    frame = spark.createDataFrame(
        pairs, "n INT, lat DOUBLE, lon DOUBLE, lat2 DOUBLE, lon2 DOUBLE, radius DOUBLE, level INT"
    )
    frame.createOrReplaceTempView("pairs")
    spark.sql(grid.DISTANCE)
    levels = sorted({pair[6] for pair in pairs})
    around = grid.cells_around("lat", "lon", levels)
    heights = " ".join(f"WHEN {level} THEN {grid.height_of(level)!r}D" for level in levels)
    own = grid.cell("lat2", "lon2", "level", f"(CASE level {heights} END)")
    meets = f"size(filter({around}, c -> c = {own})) AS meets"
    query = f"SELECT n, distance(lat, lon, lat2, lon2) AS metres, {meets} FROM pairs"
    rows = {row.n: row for row in spark.sql(query).collect()}
    near = 0
    for n, lat, lon, lat2, lon2, radius, _ in pairs:
        assert rows[n].metres == pytest.approx(metres({"lat": lat, "lon": lon}, {"lat": lat2, "lon": lon2}), abs=0.01)
        assert rows[n].meets <= 1
        if rows[n].metres <= radius:
            near += 1
            assert rows[n].meets == 1, pairs[n]
    assert near > 300


def test_spark_itself_gives_no_environment_and_no_files(spark: SparkSession) -> None:
    """The wall behind the whitelist, which lets a text through."""
    assert spark.sql("SELECT '${env:PATH} ${system:user.dir}' AS text").first()["text"] == (  # type: ignore[index]
        "${env:PATH} ${system:user.dir}"
    )
    with pytest.raises(AnalysisException):
        spark.sql("SELECT * FROM text.`/etc/hostname`")
