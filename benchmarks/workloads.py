"""Speed of the workloads: the follow-graph generator by doubling, and the taxi job against plain pandas.

.venv/bin/python -m benchmarks.workloads [follow|taxi] [--trips 250000,500000,1000000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from benchmarks.measure import Figure, in_fresh_process, print_table

from nearcast.lab.workloads.follow import FollowParameters, follow, generate_follows
from nearcast.lab.workloads.taxi_job import FIELDS, GRID, REASONS, TaxiParameters
from nearcast.lab.workloads.taxi_trips import write_trips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    import pandas as pd


def follow_figures() -> Iterator[Figure]:
    """The generator with 25, 50 and 100 thousand clients, each in a process of its own."""
    before = None
    for clients in (25_000, 50_000, 100_000):
        _, seconds, megabytes = in_fresh_process(_follow, clients)
        ratio = None if before is None else seconds / before
        target = "under 10 s" if clients == 100_000 else ""
        value = f"{seconds:.2f} s, {megabytes:.0f} MB"
        yield Figure(f"follow graph, {clients:,} clients", value, "half the size" if before else "", ratio, target)
        before = seconds


def _follow(clients: int) -> int:
    p = FollowParameters(topics=clients // 8)
    return len(follow(generate_follows(clients, p), p).schedule)


def taxi_figures(sizes: list[int]) -> Iterator[Figure]:
    """The Spark job and pandas on the same trips; both must find the same load and the same bad rows."""
    for trips in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trips.csv"
            write_trips(path, trips)
            spark = _in_measured_tree(_spark, str(path), f"{folder}/load.parquet")
            plain = _in_measured_tree(_pandas, str(path))
        if spark["rows"] != plain["rows"] or spark["groups"] != plain["groups"]:
            raise SystemExit(f"the results differ: {spark} {plain}")
        yield Figure(
            f"{trips:,} trips: trips/s, once Spark is up",
            f"{trips / spark['seconds']:,.0f} ({spark['start']:.0f} s to start)",
            f"pandas {trips / plain['seconds']:,.0f}",
            plain["seconds"] / spark["seconds"],
        )
        # On a machine that others use, processor time tells more than the clock.
        yield Figure(
            f"{trips:,} trips: processor time, all of it",
            f"{spark['cpu']:.0f} s",
            f"pandas {plain['cpu']:.0f} s",
            plain["cpu"] / spark["cpu"],
        )
        peak = f"{spark['mb']:,.0f} MB", f"pandas {plain['mb']:,.0f} MB"
        yield Figure(f"{trips:,} trips: peak memory", *peak, spark["mb"] / plain["mb"], "flat")


def _spark(path: str, out: str) -> dict[str, Any]:
    from nearcast.cluster.spark_session import spark_session
    from nearcast.lab.workloads.taxi_job import analyse

    p = TaxiParameters()
    begin = time.perf_counter()
    spark = spark_session("benchmark", p.master, memory=p.memory)
    start = time.perf_counter() - begin
    begin = time.perf_counter()
    found = analyse(spark, path, out, p)
    seconds = time.perf_counter() - begin
    groups = spark.read.parquet(out).count()
    spark.stop()
    return {"start": start, "seconds": seconds, "rows": found.rows, "groups": groups}


def _pandas(path: str) -> dict[str, Any]:
    begin = time.perf_counter()
    rows, load = pandas_load(path, TaxiParameters())
    load.groupby(["east", "south"]).agg({"rate": "max", "most_publishers": "max"})
    load.groupby("window_s").rate.agg(["sum", "count"])
    return {"seconds": time.perf_counter() - begin, "rows": rows, "groups": len(load)}


def pandas_load(path: str, p: TaxiParameters) -> tuple[dict[str, int], pd.DataFrame]:
    """What the Spark job computes, in plain pandas: all trips in memory at once."""
    import pandas as pd

    # Made-up trips have rows with too few columns and none with too many, which pandas would stop at.
    needed = ["pickup_datetime", "dropoff_datetime", *FIELDS[6:10], "total_amount"]
    trips = pd.read_csv(path, names=list(FIELDS), usecols=needed, dtype=str, header=None)
    times = (trips[c] for c in ("pickup_datetime", "dropoff_datetime"))
    t0, t1 = (pd.to_datetime(c, format="%Y-%m-%d %H:%M:%S", errors="coerce") for c in times)
    x0, y0, x1, y1 = (pd.to_numeric(trips[c], errors="coerce").to_numpy() for c in FIELDS[6:10])
    readable = t0.notna() & t1.notna() & np.isfinite(x0) & np.isfinite(y0) & np.isfinite(x1) & np.isfinite(y1)
    s0, s1 = (t.astype("datetime64[s]").astype("int64").to_numpy() for t in (t0, t1))

    def inside(x: Any, y: Any) -> Any:
        east, south = GRID.west + GRID.cells * GRID.cell_lon, GRID.north - GRID.cells * GRID.cell_lat
        return (x >= GRID.west) & (x < east) & (y <= GRID.north) & (y > south)

    good = np.ones(len(trips), dtype=bool)
    rows = {"rows": len(trips)}
    checks = (
        trips["total_amount"].notna().to_numpy(),
        readable.to_numpy(),
        (x0 != 0) & (y0 != 0) & (x1 != 0) & (y1 != 0),
        inside(x0, y0) & inside(x1, y1),
        (s1 >= s0) & (s1 - s0 <= p.longest_trip_s),
    )
    for reason, passed in zip(REASONS, checks, strict=True):
        rows[reason] = int((good & ~passed).sum())
        good &= passed
    first = -(-s0 // p.step_s)
    strokes = np.where(good, np.maximum(-(-s1 // p.step_s) - first, 0), 0)
    trip = np.repeat(np.arange(len(trips)), strokes)
    stroke = first[trip] + np.arange(len(trip)) - np.repeat(np.cumsum(strokes) - strokes, strokes)
    share = (stroke * p.step_s - s0[trip]) / (s1 - s0)[trip]
    x, y = x0[trip] + share * (x1 - x0)[trip], y0[trip] + share * (y1 - y0)[trip]
    seen = pd.DataFrame(
        {
            "stroke": stroke,
            "east": np.floor((x - GRID.west) / GRID.cell_lon).astype(np.int32) + 1,
            "south": np.floor((GRID.north - y) / GRID.cell_lat).astype(np.int32) + 1,
        }
    )
    taxis = seen.groupby(["stroke", "east", "south"]).size().rename("taxis").reset_index()
    taxis["window_s"] = taxis["stroke"] * p.step_s // p.window_s * p.window_s
    load = taxis.groupby(["window_s", "east", "south"]).taxis.agg(["sum", "max"]).reset_index()
    load["publishers"] = load.pop("sum") / (p.window_s / p.step_s)
    load["most_publishers"] = load.pop("max")
    load["rate"] = load["publishers"] * p.rate
    return rows, load


def _in_measured_tree(call: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    """A call in a process of its own; its result, with processor time and peak memory of it and its children."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, call, args))
    process.start()
    sender.close()
    watched, peak = psutil.Process(process.pid), 0
    seconds: dict[int, float] = {}
    while not receiver.poll(0.1):
        memory = 0
        for member in (watched, *watched.children(recursive=True)):
            try:
                memory += member.memory_info().rss
                used = member.cpu_times()
            except psutil.NoSuchProcess:
                continue
            seconds[member.pid] = used.user + used.system
        peak = max(peak, memory)
    result: dict[str, Any] = receiver.recv()
    process.join()
    return result | {"cpu": sum(seconds.values()), "mb": peak / 2**20}


def _send(sender: Connection, call: Callable[..., dict[str, Any]], args: tuple[Any, ...]) -> None:
    sender.send(call(*args))


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=["follow", "taxi"])
    parser.add_argument("--trips", default="250000,500000,1000000")
    wanted = parser.parse_args()
    if wanted.part != "taxi":
        print_table("follow", follow_figures())
    if wanted.part != "follow":
        print_table("taxi", taxi_figures([int(n) for n in wanted.trips.split(",")]))


if __name__ == "__main__":
    main()
