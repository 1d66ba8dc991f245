"""Taxi regions as a workload: topics for the co-location planner, and the first trips as live events."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.cluster.spark_session import spark_session
from nearcast.errors import InputError
from nearcast.lab.workloads.schedule import JOIN, LEAVE, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, Schedule, ScheduleBuilder
from nearcast.lab.workloads.taxi_job import GRID, Analysis, TaxiParameters, analyse, first_trips
from nearcast.lab.workloads.workload import Columns, SiteMap, Workload

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from numpy.typing import NDArray

    from nearcast.placement.arrays import Floats

__all__ = ["LARGEST_RATE", "taxi", "topic_table", "trip_schedule"]

BOUND_MS = 1000.0
# Processing time of a message in ms, and the rate a topic alone on a worker sustains (Section VI-C): a busier
# gps topic is split and its publishers are shared out, as the paper proposes.
LARGEST_RATE = {10: 78.0, 20: 37.0, 30: 24.0, 40: 20.0}


def taxi(trips: str, folder: Path, p: TaxiParameters) -> Workload:
    """Run the Spark job; the load per region and window stays in `folder`/load.parquet."""
    spark = spark_session("nearcast workload taxi", p.master, memory=p.memory)
    new = not folder.exists()
    analysis = analyse(spark, trips, str(folder / "load.parquet"), p)
    if analysis.regions.empty:
        shutil.rmtree(folder if new else folder / "load.parquet", ignore_errors=True)
        reasons = ", ".join(f"{count} {reason}" for reason, count in analysis.rows.items() if count)
        raise InputError(f"{trips}, row 1: no trip can be used ({reasons})")
    schedule = trip_schedule(first_trips(spark, trips, p.sample_trips, p), p)
    return _workload(analysis, schedule, p)


def topic_table(regions: pd.DataFrame, seed: int) -> Columns:
    """The gps and update topics of every region at its busiest: topic, rate, processing_ms, bound_ms."""
    rng = np.random.default_rng(seed)
    topic, rate, processing = [], [], []
    for east, south, busiest in regions[["east", "south", "rate"]].itertuples(index=False):
        here, gps_ms, update_ms = f"r{east}-{south}", *rng.choice(list(LARGEST_RATE), 2)
        parts = int(np.ceil(busiest / LARGEST_RATE[gps_ms]))
        names = [f"gps.{here}"] if parts == 1 else [f"gps.{here}.{part}" for part in range(parts)]
        topic += [*names, f"update.{here}"]
        rate += [busiest / parts] * parts + [1.0]
        processing += [gps_ms] * parts + [update_ms]
    return {
        "topic": topic,
        "rate": np.array(rate),
        "processing_ms": np.array(processing),
        "bound_ms": np.full(len(topic), BOUND_MS),
    }


def trip_schedule(trips: pd.DataFrame, p: TaxiParameters) -> Schedule:
    """Each trip is a client: it joins, tells its position on every stroke of `step_s`, and leaves.

    It listens to the updates of the region it is in; a dispatcher hears all positions and sends one update
    per region and stroke.
    """
    t0, t1, x0, y0, x1, y1 = (trips[c].to_numpy(np.float64) for c in ("t0", "t1", "x0", "y0", "x1", "y1"))
    first = np.ceil(t0 / p.step_s).astype(np.int64)
    strokes = np.maximum(np.ceil(t1 / p.step_s).astype(np.int64) - first, 0)
    if not strokes.any():
        raise InputError(f"no trip of the sample lasts over a stroke of {p.step_s} s")
    trip = np.repeat(np.arange(len(t0)), strokes)
    nth = np.arange(len(trip)) - np.repeat(np.cumsum(strokes) - strokes, strokes)
    when = (first[trip] + nth) * float(p.step_s)
    share = (when - t0[trip]) / (t1 - t0)[trip]
    x, y = x0[trip] + share * (x1 - x0)[trip], y0[trip] + share * (y1 - y0)[trip]
    cell = np.floor((GRID.north - y) / GRID.cell_lat) * GRID.cells + np.floor((x - GRID.west) / GRID.cell_lon)
    cells, region = np.unique(cell.astype(np.int64), return_inverse=True)

    names = [f"r{c % GRID.cells + 1}-{c // GRID.cells + 1}" for c in cells.tolist()]
    regions = len(names)
    dispatcher = len(t0)
    events = ScheduleBuilder(
        [*(f"taxi{n}" for n in range(len(t0))), "dispatcher"],
        [*(f"gps.{r}" for r in names), *(f"update.{r}" for r in names)],
        ["datacentre"],
    )
    start = float(t0[strokes > 0].min())
    end = float(when.max()) - start + 1
    when = when - start
    events.add(JOIN, 0.0, dispatcher, site=0)
    events.add(SUBSCRIBE, 0.0, dispatcher, np.arange(regions))
    events.add(PUBLISH, when, trip, region, x=x, y=y, size=4096)
    stroke = np.unique(np.stack((when, region)), axis=1)
    events.add(PUBLISH, stroke[0], dispatcher, regions + stroke[1].astype(np.int64), size=4096)
    events.add(UNSUBSCRIBE, end, dispatcher, np.arange(regions))
    events.add(LEAVE, end, dispatcher)

    new_trip = np.diff(trip, prepend=-1) != 0
    entered = new_trip | (np.diff(region, prepend=-1) != 0)
    left = np.append(entered[1:], True)
    last = np.append(new_trip[1:], True)
    events.add(JOIN, when[new_trip], trip[new_trip], site=0, x=x[new_trip], y=y[new_trip])
    events.add(SUBSCRIBE, when[entered], trip[entered], regions + region[entered])
    # A taxi stops listening when it is seen in another region, at the end of its trip half a stroke later.
    until = np.where(last, when + p.step_s / 2, np.append(when[1:], 0))
    events.add(UNSUBSCRIBE, until[left], trip[left], regions + region[left])
    events.add(LEAVE, until[last], trip[last])
    return events.build()


def _workload(analysis: Analysis, schedule: Schedule, p: TaxiParameters) -> Workload:
    regions, over_time = analysis.regions, analysis.over_time
    topics = topic_table(regions, p.seed)
    lon, lat = centres(regions["east"].to_numpy(), regions["south"].to_numpy())
    names = [f"r{e}-{s}" for e, s in zip(regions["east"], regions["south"], strict=True)]
    start = over_time["window_s"].min()
    tables = {
        "topics": topics,
        "regions": {
            "region": names, "lat": lat, "lon": lon, "rate": regions["rate"].to_numpy(),
            "most_publishers": regions["most_publishers"].to_numpy(),
        },
        "load_over_time": {
            "time_s": (over_time["window_s"] - start).to_numpy(), "rate": over_time["rate"].to_numpy(),
            "regions": over_time["regions"].to_numpy(),
        },
    }  # fmt: skip
    rows = dict(analysis.rows)
    about = {
        "rows": rows.pop("rows"), "regions": len(regions), "topics": len(topics["topic"]),
        "windows": len(over_time), "window_s": p.window_s,
        "most_taxis_in_a_region": int(regions["most_publishers"].max()),
        "trips_in_schedule": len(schedule.clients) - 1, "seed": p.seed,
    }  # fmt: skip
    places = SiteMap(names, lon, lat, regions["rate"].to_numpy(), ("longitude", "latitude"))
    skipped = {reason: count for reason, count in rows.items() if count}
    plan = "colocation --topics topics.csv --model MODEL --k 4"
    return Workload("taxi", about, plan, tables, places, schedule, skipped)


def centres(east: NDArray[Any], south: NDArray[Any]) -> tuple[Floats, Floats]:
    """Longitude and latitude of the middle of regions."""
    east, south = east.astype(np.float64), south.astype(np.float64)
    return GRID.west + (east - 0.5) * GRID.cell_lon, GRID.north - (south - 0.5) * GRID.cell_lat
