"""Taxi regions: the Spark job against a literal count, bad rows by reason, topics and events."""

from __future__ import annotations

import csv
import math
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from tests.lab.workloads.literal import check_prediction, play_literally

from nearcast.cli.tables import Column, read_table
from nearcast.errors import InputError
from nearcast.lab.workloads.taxi import LARGEST_RATE, centres, taxi, topic_table, trip_schedule
from nearcast.lab.workloads.taxi_job import FIELDS, GRID, REASONS, TaxiParameters, analyse
from nearcast.lab.workloads.taxi_trips import write_trips

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

P = TaxiParameters(master="local[2]", memory="512m", sample_trips=20)


def _literal(path: Path) -> tuple[Counter[str], Counter[tuple[int, int, int]]]:
    """Rows by reason, and taxis by stroke and region, one row after the other."""
    reasons: Counter[str] = Counter()
    taxis: Counter[tuple[int, int, int]] = Counter()
    for row in csv.reader(path.read_text().splitlines()):
        reasons["rows"] += 1
        if len(row) != 17:
            reasons["not 17 columns"] += 1
            continue
        try:
            t0, t1 = (datetime.strptime(row[c], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() for c in (2, 3))
            x0, y0, x1, y1 = map(float, row[6:10])
        except ValueError:
            reasons["unreadable number or time"] += 1
            continue
        if 0 in (x0, y0, x1, y1):
            reasons["no position"] += 1
        elif not all(1 <= c <= 300 for c in (*_region(x0, y0), *_region(x1, y1))):
            reasons["outside the city"] += 1
        elif not 0 <= t1 - t0 <= 86_400:
            reasons["impossible times"] += 1
        else:
            stroke = math.ceil(t0 / 60)
            while stroke * 60 < t1:
                share = (stroke * 60 - t0) / (t1 - t0)
                taxis[stroke, *_region(x0 + share * (x1 - x0), y0 + share * (y1 - y0))] += 1
                stroke += 1
    return reasons, taxis


def _region(x: float, y: float) -> tuple[int, int]:
    return math.floor((x - GRID.west) / GRID.cell_lon) + 1, math.floor((GRID.north - y) / GRID.cell_lat) + 1


@pytest.mark.xdist_group("spark")
def test_the_job_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """All that needs Spark in one test, so that one JVM starts: pytest-xdist 3.8 forgets groups under pytest 9.2."""
    for check in (_counts_what_a_literal_count_finds, _counts_every_kind_of_bad_row, _refuses_useless_trips):
        folder = tmp_path / check.__name__
        folder.mkdir()
        check(spark, folder)


def _counts_what_a_literal_count_finds(spark: SparkSession, tmp_path: Path) -> None:
    trips = tmp_path / "trips.csv"
    bad = write_trips(trips, 3000, seed=5, trips_per_day=40_000)
    found = analyse(spark, str(trips), str(tmp_path / "load.parquet"), P)
    reasons, taxis = _literal(trips)
    assert found.rows == {"rows": 3000, **{r: reasons[r] for r in REASONS}}
    assert {r: found.rows[r] for r in REASONS} == bad

    wanted: dict[tuple[int, int, int], list[int]] = {}
    for (stroke, east, south), count in taxis.items():
        wanted.setdefault((stroke * 60 // 900 * 900, east, south), []).append(count)
    load = pd.read_parquet(tmp_path / "load.parquet")
    got = {(r.window_s, r.east, r.south): (r.publishers, r.most_publishers, r.rate) for r in load.itertuples()}
    assert got.keys() == wanted.keys()
    for key, counts in wanted.items():
        assert got[key] == (pytest.approx(sum(counts) / 15), max(counts), pytest.approx(sum(counts) / 15))

    regions = load.groupby(["south", "east"]).rate.max()
    assert found.regions["rate"].tolist() == pytest.approx(regions.tolist())
    assert found.over_time["rate"].tolist() == pytest.approx(load.groupby("window_s").rate.sum().tolist())


def _counts_every_kind_of_bad_row(_: SparkSession, tmp_path: Path) -> None:
    good = (
        "A,B,2013-01-01 00:00:10,2013-01-01 00:05:10,300,1.0,-73.98,40.75,-73.97,40.76,"
        "CSH,3.50,0.50,0.50,0.00,0.00,4.50"
    )
    rows = [
        good,
        good.replace("-73.98,40.75", "0.000000,0.000000"),
        good.replace("-73.98", ""),
        good.replace("-73.98", "west"),
        good.replace("40.76", "51.50"),
        good.replace("00:05:10", "not yet"),
        good.replace("2013-01-01 00:05:10", "2012-12-31 23:00:00"),
        good.replace("2013-01-01 00:05:10", "2013-01-03 00:00:00"),
        good + ",surplus",
        "A,B,2013-01-01 00:00:10",
    ]
    trips = tmp_path / "trips.csv"
    trips.write_text("\n".join(rows) + "\n")
    made = taxi(str(trips), tmp_path / "out", P)
    assert made.skipped == {
        "not 17 columns": 2,
        "unreadable number or time": 3,
        "no position": 1,
        "outside the city": 1,
        "impossible times": 2,
    }
    assert made.about["rows"] == 10
    assert made.about["trips_in_schedule"] == 1
    # Five strokes: 00:01 to 00:05.
    assert sum(e.kind == "publish" and e.client == "taxi0" for e in made.schedule) == 5
    check_prediction(made.schedule)
    made.save(tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {"topics.csv", "regions.csv", "load.parquet"}
    columns = [Column("topic", "text"), Column("rate"), Column("processing_ms"), Column("bound_ms")]
    assert read_table(tmp_path / "out" / "topics.csv", columns, key=["topic"]).rows == made.about["topics"]


def _refuses_useless_trips(_: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv, row 0: there is no such file"):
        taxi(str(tmp_path / "nowhere.csv"), tmp_path / "out", P)
    trips = tmp_path / "trips.csv"
    trips.write_text("a,b\nc,d\n")
    with pytest.raises(InputError, match=r"no trip can be used \(2 rows, 2 not 17 columns\)"):
        taxi(str(trips), tmp_path / "out", P)
    with pytest.raises(InputError, match="window_s is 100; a multiple of step_s"):
        taxi(str(trips), tmp_path / "out", TaxiParameters(window_s=100, master=P.master))
    assert not (tmp_path / "out").exists()


def test_made_up_trips_have_the_format_and_the_bad_rows_they_tell(tmp_path: Path) -> None:
    bad = write_trips(tmp_path / "trips.csv", 5000, seed=2)
    reasons, taxis = _literal(tmp_path / "trips.csv")
    assert reasons["rows"] == 5000
    assert {r: reasons[r] for r in REASONS} == bad
    assert min(bad.values()) > 0
    assert taxis.total() > 10_000
    first = next(csv.reader((tmp_path / "trips.csv").read_text().splitlines()))
    assert len(first) == len(FIELDS) == 17


def test_busy_topics_are_split_to_what_a_worker_sustains() -> None:
    regions = pd.DataFrame({"east": [1, 2, 3], "south": [7, 7, 8], "rate": [500.0, 3.5, 0.2]})
    table = topic_table(regions, seed=1)
    gps = [n for n, t in enumerate(table["topic"]) if t.startswith("gps")]
    for row in gps:
        assert table["rate"][row] <= LARGEST_RATE[int(table["processing_ms"][row])]
    assert table["rate"][gps].sum() == pytest.approx(503.7)
    assert len(set(table["topic"])) == len(table["topic"])
    assert [t for t in table["topic"] if t.startswith("update")] == [
        "update.r1-7",
        "update.r2-7",
        "update.r3-8",
    ]
    assert set(table["bound_ms"]) == {1000.0}


def test_a_trip_is_a_client_that_tells_its_position_and_hears_its_region() -> None:
    # Due east over three regions in four minutes, and a second taxi that stays in the first.
    x, y = centres(np.array([150]), np.array([160]))
    columns = {"t0": [30, 45], "t1": [270, 130], "x0": [x[0]] * 2, "y0": [y[0]] * 2, "y1": [y[0]] * 2}
    trips = pd.DataFrame({**columns, "x1": [x[0] + 2.2 * GRID.cell_lon, x[0]]})
    schedule = trip_schedule(trips, P)
    check_prediction(schedule)
    told = [(e.topic, e.time_s) for e in schedule if e.kind == "publish" and e.client == "taxi0"]
    assert [t for t, _ in told] == ["gps.r150-160", "gps.r151-160", "gps.r151-160", "gps.r152-160"]
    assert [s for _, s in told] == [30, 90, 150, 210]
    published, delivered = play_literally(schedule)
    # Updates of the first region at both strokes: heard by both taxis, then by the one that stays.
    assert (published["update.r150-160"], delivered["update.r150-160"]) == (2, 3)


def test_trips_that_are_never_looked_at_give_no_schedule() -> None:
    trips = pd.DataFrame({"t0": [10], "t1": [20], "x0": [1.0], "y0": [1.0], "x1": [1.0], "y1": [1.0]})
    with pytest.raises(InputError, match="no trip of the sample lasts over a stroke of 60 s"):
        trip_schedule(trips, P)


def test_the_grid_is_that_of_the_grand_challenge() -> None:
    lon, lat = centres(np.array([1]), np.array([1]))
    assert (lat[0], lon[0]) == (pytest.approx(41.474937), pytest.approx(-74.913585))
