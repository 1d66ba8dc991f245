"""The channels of the demonstration on Spark, compared with plain Python."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nearcast.cluster.channel_trials import try_channel
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.verification import verify_statement
from nearcast.lab.demo.city import City
from nearcast.lab.demo.data_cluster import CHANNELS, DATASETS, RADIUS_M
from nearcast.lab.demo.wording import metres, sentence

pytestmark = pytest.mark.xdist_group("spark")
REACH_M = 5000.0


def test_people_are_notified_by_type_by_area_and_near_them_with_the_nearest_open_shelter(spark: SparkSession) -> None:
    city, known = City(30.0, 2), {spec.name: spec for spec in DATASETS}
    reports = [
        {"id": r.id, "kind": r.kind, "zone": r.zone, "lat": r.lat, "lon": r.lon, "seen": r.at - r.age_s, "sent": r.at}
        for r in city.reports[:120]
    ]
    places = [dict(zip(("user", "lat", "lon"), (f"person{n}", *city.walk(n, 5.0)), strict=True)) for n in range(4)]
    tables = {"reports": reports, "locations": places, "shelters": city.shelters}
    records = {name: pa.Table.from_pylist(rows) for name, rows in tables.items()}

    def nearest_open(report: dict) -> str | None:
        away = [
            (metres(report["lat"], report["lon"], s["lat"], s["lon"]), s["name"]) for s in city.shelters if s["is_open"]
        ]
        return min(away)[1] if min(away)[0] <= REACH_M else None

    def near(report: dict) -> bool:
        return metres(report["lat"], report["lon"], places[1]["lat"], places[1]["lon"]) <= RADIUS_M

    asked = {
        "by_type": ({"kind": "fire"}, lambda report: report["kind"] == "fire"),
        "by_area": ({"zone": "harbour"}, lambda report: report["zone"] == "harbour"),
        "near_me": ({"user": "person1", "radius": RADIUS_M}, near),
    }
    for spec in CHANNELS:
        channel = validate_query(spark, spec, known)
        verify_statement(spark, channel, known)
        params, wanted = asked[spec.name]
        rows = try_channel(spark, channel, known, records, params)
        expected = {report["id"]: nearest_open(report) for report in reports if wanted(report)}
        assert expected, spec.name
        assert {row["id"]: row["shelter"] for row in rows} == expected
        said = sentence(rows[0], (places[1]["lat"], places[1]["lon"]), reports[-1]["sent"])
        assert f"{rows[0]['kind']}, " in said
        assert "nearest open shelter: " in said
