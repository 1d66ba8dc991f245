"""The data cluster of the city: one process that makes the catalog, then keeps datasets and channels.

    python -m nearcast.lab.demo.data_cluster CONFIGURATION SHELTERS

It is `nearcast dataset add`, `channel add` and `cluster run` with one Java for all of them. Spark starts at once; the
rest waits for a line on standard input, which says that the sites are up.
"""

from __future__ import annotations

import select
import signal
import sys
import threading
from pathlib import Path

from nearcast.cluster.admin import Admin
from nearcast.cluster.driver import Driver
from nearcast.cluster.spark_session import spark_session
from nearcast.config.deployment_file import read_configuration
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec

__all__ = ["CHANNELS", "DATASETS", "RADIUS_M", "READY"]

READY = "Ready."
RADIUS_M = 1500.0  # what counts as near me
_SHELTER_REACH_M = 5000
DATASETS = (
    DatasetSpec(
        "reports",
        "id STRING NOT NULL, kind STRING NOT NULL, zone STRING NOT NULL, lat DOUBLE NOT NULL, lon DOUBLE NOT NULL, "
        "seen DOUBLE NOT NULL, sent DOUBLE NOT NULL",
        "fed.reports",
    ),
    DatasetSpec("locations", "user STRING NOT NULL, lat DOUBLE NOT NULL, lon DOUBLE NOT NULL", "fed.locations", "user"),
    DatasetSpec("shelters", "name STRING NOT NULL, is_open BOOLEAN, lat DOUBLE, lon DOUBLE"),
)
# Shelters are joined in: the nearest open one to the emergency, and where it is.
_ENRICHED = f"""(SELECT r._sequence, r.id, r.kind, r.zone, r.lat, r.lon, r.seen, r.sent,
  min_by(s.name, distance(r.lat, r.lon, s.lat, s.lon)) AS shelter,
  min_by(s.lat, distance(r.lat, r.lon, s.lat, s.lon)) AS shelter_lat,
  min_by(s.lon, distance(r.lat, r.lon, s.lat, s.lon)) AS shelter_lon
  FROM reports r LEFT JOIN shelters s ON s.is_open AND distance(r.lat, r.lon, s.lat, s.lon) <= {_SHELTER_REACH_M}
  GROUP BY ALL) e"""
_COLUMNS = "e.id, e.kind, e.zone, e.lat, e.lon, e.seen, e.sent, e.shelter, e.shelter_lat, e.shelter_lon"
CHANNELS = (
    ChannelSpec(
        "by_type",
        f"SELECT {_COLUMNS} FROM {_ENRICHED} WHERE e.kind = :kind",
        (Parameter("kind", "string"),),
        new="reports",
    ),
    ChannelSpec(
        "by_area",
        f"SELECT {_COLUMNS} FROM {_ENRICHED} WHERE e.zone = :zone",
        (Parameter("zone", "string"),),
        new="reports",
    ),
    ChannelSpec(
        "near_me",
        f"SELECT {_COLUMNS} FROM {_ENRICHED} JOIN locations u "
        "ON distance(e.lat, e.lon, u.lat, u.lon) <= :radius WHERE u.user = :user",
        (Parameter("user", "string"), Parameter("radius", "double")),
        new="reports",
    ),
)


def main() -> None:
    """Run until told to stop."""
    sys.setswitchinterval(0.001)  # a batch passes through several threads, each switch may take this long
    spark = spark_session("nearcast demo")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # after Spark has started: it installs its own handlers
        signal.signal(number, lambda *_: stop.set())
    try:
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            if stop.is_set():
                return
        deployment = read_configuration(Path(sys.argv[1]))
        admin = Admin(deployment)
        for dataset in DATASETS:
            admin.add_dataset(dataset, spark)
        admin.load_dataset("shelters", Path(sys.argv[2]), spark)
        for channel in CHANNELS:
            admin.add_channel(channel, spark)
        with Driver(spark, deployment) as driver:
            print(READY, flush=True)
            driver.run(stop)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
