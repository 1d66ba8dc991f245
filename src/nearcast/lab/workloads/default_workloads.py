"""Each workload as it is made when nothing is given."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.lab.workloads.content import ContentParameters, content
from nearcast.lab.workloads.emergency import emergency
from nearcast.lab.workloads.emergency_scene import EmergencyParameters, real_scene
from nearcast.lab.workloads.follow import FollowParameters, follow, generate_follows
from nearcast.lab.workloads.game import GameParameters, game, generate_cities
from nearcast.lab.workloads.taxi_job import TaxiParameters
from nearcast.lab.workloads.uav import UavParameters, generate_towers, uav

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.lab.workloads.workload import Workload

__all__ = ["DEFAULTS", "TAXI_TRIPS", "make_taxi"]

TAXI_TRIPS = 20_000
"""Generated taxi trips when there is no file."""


def make_taxi(trips: str | None, generate: int, out: Path, p: TaxiParameters) -> Workload:
    """The workload of taxi trips, generated if there are none; its Spark is stopped."""
    from nearcast.cluster.spark_session import stop_spark
    from nearcast.lab.workloads.taxi import taxi
    from nearcast.lab.workloads.taxi_trips import write_trips

    try:
        if trips is not None:
            return taxi(trips, out, p)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "trips.csv"
            write_trips(made, generate, p.seed)
            return taxi(str(made), out, p)
    finally:
        stop_spark()


def _default_taxi() -> Workload:
    with tempfile.TemporaryDirectory() as folder:
        return make_taxi(None, TAXI_TRIPS, Path(folder) / "taxi", TaxiParameters())


DEFAULTS: dict[str, Callable[[], Workload]] = {
    "follow": lambda: follow(generate_follows(512, FollowParameters()), FollowParameters()),
    "taxi": _default_taxi,
    "uav": lambda: uav(generate_towers(300, 1), UavParameters()),
    "game": lambda: game(generate_cities(), GameParameters()),
    "content": lambda: content(ContentParameters()),
    "emergency": lambda: emergency(real_scene(EmergencyParameters()), EmergencyParameters()),
}
