"""Taxi regions: the use case of *Scalable Edge Computing for Low Latency Data Dissemination*, Section III-A.

A Spark job over trips in the format of the DEBS 2015 Grand Challenge. The city is cut into regions of
500 m x 500 m; taxis send their position on their region's `gps` topic and listen on its `update` topic.

A trip has the positions of its pick-up and drop-off; in between the taxi is assumed to drive straight.
Its position is looked at on every stroke of `step_s`, so a taxi counts once per stroke and no distinct count
is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "FIELDS",
    "GRID",
    "REASONS",
    "Analysis",
    "Grid",
    "TaxiParameters",
    "analyse",
    "first_trips",
    "read_trips",
    "region_load",
]

FIELDS = (
    "medallion", "hack_license", "pickup_datetime", "dropoff_datetime", "trip_time_in_secs", "trip_distance",
    "pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude", "payment_type",
    "fare_amount", "surcharge", "mta_tax", "tip_amount", "tolls_amount", "total_amount",
)  # fmt: skip
REASONS = ("not 17 columns", "unreadable number or time", "no position", "outside the city", "impossible times")


@dataclass(frozen=True)
class Grid:
    """The regions of the DEBS 2015 Grand Challenge: 300 x 300 cells of 500 m, counted from the north-west."""

    north: float = 41.474937 + 0.004491556 / 2
    west: float = -74.913585 - 0.005986 / 2
    cell_lat: float = 0.004491556
    cell_lon: float = 0.005986
    cells: int = 300


GRID = Grid()


@dataclass(frozen=True)
class TaxiParameters:
    """A taxi tells its position `rate` times a second (1 in the paper). Load is kept per window of time.

    The schedule of live events is that of the first `sample_trips`, with one position every `step_s`.
    `master` is any Spark master; on a cluster, trips and `out` must be where all its machines can reach them.
    """

    step_s: int = 60
    window_s: int = 900
    longest_trip_s: int = 24 * 3600
    rate: float = 1.0
    sample_trips: int = 200
    seed: int = 1
    master: str = "local[*]"
    memory: str = "1g"


def read_trips(spark: SparkSession, path: str, p: TaxiParameters) -> DataFrame:
    """Trips with typed columns and `reason`, which is null for a good row; every row of the file is there."""
    from pyspark.sql import functions as F  # noqa: N812

    text = spark.read.csv(path, schema=", ".join(f"{f} string" for f in (*FIELDS, "more")), mode="PERMISSIVE")

    def inside(lon: Column, lat: Column) -> Column:
        east, south = GRID.west + GRID.cells * GRID.cell_lon, GRID.north - GRID.cells * GRID.cell_lat
        return (lon >= GRID.west) & (lon < east) & (lat <= GRID.north) & (lat > south)

    def seconds(column: str) -> Column:
        # Nineteen characters: a cast alone would also take a bare date.
        whole = F.when(F.length(column) == len("2013-01-01 00:00:00"), F.col(column))
        return F.unix_timestamp(whole.try_cast("timestamp"))

    named = {"x0": "pickup_longitude", "y0": "pickup_latitude", "x1": "dropoff_longitude", "y1": "dropoff_latitude"}
    typed = text.select(
        "medallion",
        seconds("pickup_datetime").alias("t0"),
        seconds("dropoff_datetime").alias("t1"),
        *(F.col(field).try_cast("double").alias(short) for short, field in named.items()),
        (F.col("total_amount").isNotNull() & F.col("more").isNull()).alias("whole"),
    )
    c = {name: F.col(name) for name in ("t0", "t1", *named)}
    readable = F.lit(True)
    for column in c.values():
        readable &= column.isNotNull() & (~F.isnan(column.cast("double")))
    somewhere = (c["x0"] != 0) & (c["y0"] != 0) & (c["x1"] != 0) & (c["y1"] != 0)
    checks = (
        F.col("whole"),
        readable,
        somewhere,
        inside(c["x0"], c["y0"]) & inside(c["x1"], c["y1"]),
        (c["t1"] >= c["t0"]) & (c["t1"] - c["t0"] <= p.longest_trip_s),
    )
    reason = F.lit(None).cast("string")
    for name, good in reversed(tuple(zip(REASONS, checks, strict=True))):
        reason = F.when(~good, F.lit(name)).otherwise(reason)
    return typed.withColumn("reason", reason).drop("whole")


def region_load(trips: DataFrame, p: TaxiParameters) -> DataFrame:
    """Load per region and window of time: mean and largest number of publishers, and rate."""
    from pyspark.sql import functions as F  # noqa: N812

    step = p.step_s
    first = F.ceil(F.col("t0") / step)
    last = F.ceil(F.col("t1") / step) - 1
    good = trips.where(F.col("reason").isNull() & (first <= last))
    seen = good.select("t0", "t1", "x0", "y0", "x1", "y1", F.explode(F.sequence(first, last)).alias("instant"))
    share = (F.col("instant") * step - F.col("t0")) / (F.col("t1") - F.col("t0"))
    lon = F.col("x0") + share * (F.col("x1") - F.col("x0"))
    lat = F.col("y0") + share * (F.col("y1") - F.col("y0"))
    per_instant = (
        seen.select(
            "instant",
            (F.floor((lon - GRID.west) / GRID.cell_lon) + 1).cast("int").alias("east"),
            (F.floor((GRID.north - lat) / GRID.cell_lat) + 1).cast("int").alias("south"),
        )
        .groupBy("instant", "east", "south")
        .agg(F.count("*").alias("taxis"))
    )
    window = F.floor(F.col("instant") * step / p.window_s) * p.window_s
    instants = p.window_s / step
    mean = F.sum("taxis") / instants
    return per_instant.groupBy(window.alias("window_s"), "east", "south").agg(
        mean.alias("publishers"), F.max("taxis").alias("most_publishers"), (mean * p.rate).alias("rate")
    )


@dataclass(frozen=True)
class Analysis:
    """What comes back to the driver: bounded by the grid and the windows, whatever the number of trips."""

    rows: dict[str, int]
    regions: pd.DataFrame
    over_time: pd.DataFrame


def analyse(spark: SparkSession, path: str, out: str, p: TaxiParameters) -> Analysis:
    """Write the load per region and window as Parquet to `out`, count rows by reason, sum up.

    One pass over the trips: rows are counted while the load is computed. When a cluster loses a machine and
    Spark runs its tasks again, their rows may count twice; the load never does.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    if p.window_s % p.step_s:
        raise InputError(f"window_s is {p.window_s}; a multiple of step_s ({p.step_s}) is needed")
    counts = [F.count_if(F.col("reason") == reason).alias(reason) for reason in REASONS]
    counts.insert(0, F.count(F.lit(1)).alias("rows"))
    try:
        trips = read_trips(spark, path, p)
    except AnalysisException as error:
        missing = error.getCondition() == "PATH_NOT_FOUND"
        reason = "there is no such file" if missing else str(error).splitlines()[0]
        raise InputError(f"{path}, row 0: {reason}") from None
    counted = Observation("rows")
    region_load(trips.observe(counted, *counts), p).write.mode("overwrite").parquet(out)
    load = spark.read.parquet(out)
    regions = load.groupBy("east", "south").agg(
        F.max("rate").alias("rate"), F.max("most_publishers").alias("most_publishers")
    )
    over_time = load.groupBy("window_s").agg(F.sum("rate").alias("rate"), F.count("*").alias("regions"))
    found: pd.DataFrame = regions.orderBy("south", "east").toPandas()
    # Spark forgets what it observed when nothing is left to write.
    rows = trips.agg(*counts).collect()[0].asDict() if found.empty else counted.get
    return Analysis({name: int(count) for name, count in rows.items()}, found, over_time.orderBy("window_s").toPandas())


def first_trips(spark: SparkSession, path: str, number: int, p: TaxiParameters) -> pd.DataFrame:
    """The first good trips of the file, for a schedule of live events; reads no more than it needs."""
    from pyspark.sql import functions as F  # noqa: N812

    good = read_trips(spark, path, p).where(F.col("reason").isNull() & (F.col("t1") > F.col("t0")))
    return good.drop("reason").limit(number).toPandas()
