"""The emergency application of the BAD paper, small: three datasets, seven channels, and an oracle in plain Python for
the results of each subscription."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec

DATASETS = (
    DatasetSpec(
        "reports",
        "id STRING NOT NULL, kind STRING NOT NULL, area STRING, severity INT, lat DOUBLE, lon DOUBLE, at TIMESTAMP",
        "fed.reports",
        time="at",
    ),
    DatasetSpec("locations", "user STRING NOT NULL, lat DOUBLE NOT NULL, lon DOUBLE NOT NULL", "fed.locations", "user"),
    DatasetSpec("shelters", "name STRING NOT NULL, is_open BOOLEAN, lat DOUBLE, lon DOUBLE"),
)
_REACH = 3000
ENRICHED = f"""(SELECT r._sequence, r.id, r.kind, r.lat, r.lon,
  min_by(s.name, distance(r.lat, r.lon, s.lat, s.lon)) AS shelter
  FROM reports r LEFT JOIN shelters s ON s.is_open AND distance(r.lat, r.lon, s.lat, s.lon) <= {_REACH}
  GROUP BY ALL) e"""


def channel(name: str, query: str, period: float | None, new: str, **parameters: str) -> ChannelSpec:
    return ChannelSpec(name, query, tuple(Parameter(n, t) for n, t in parameters.items()), period, new)


CHANNELS = (
    channel("of_kind", "SELECT r.id, r.severity FROM reports r WHERE r.kind = :kind", None, "reports", kind="string"),
    channel(
        "in_area",
        "SELECT r.id FROM reports r WHERE r.area = :area AND r.severity > :least",
        None, "reports", area="string", least="int",
    ),
    channel("severe", "SELECT r.id FROM reports r WHERE r.severity > :least", None, "reports", least="int"),
    channel(
        "near_place",
        "SELECT r.id FROM reports r WHERE distance(r.lat, r.lon, :lat, :lon) <= :radius",
        None, "reports", lat="double", lon="double", radius="double",
    ),
    channel(
        "near_me",
        f"""SELECT e.id, e.shelter FROM {ENRICHED}
        JOIN locations u ON distance(e.lat, e.lon, u.lat, u.lon) <= :radius WHERE u.user = :user""",
        None, "reports", user="string", radius="double",
    ),
    channel("by_period", "SELECT r.id, r.area FROM reports r WHERE r.kind = :kind", 1.0, "reports", kind="string"),
    channel(
        "counts",
        """SELECT r.kind, count(*) AS n FROM reports r
        WHERE r.area = :area AND r.at > current_timestamp() - INTERVAL 10 MINUTES GROUP BY r.kind""",
        1.0, "", area="string",
    ),
)  # fmt: skip

KINDS = ("fire", "flood", "quake", "crime")
AREAS = ("north", "south", "east")


@dataclass(frozen=True)
class World:
    """Records and subscriptions. Locations are within a few kilometres, so that some are near and some not."""

    shelters: list[dict[str, Any]]
    locations: list[dict[str, Any]]
    reports: list[dict[str, Any]]
    subscriptions: list[tuple[str, dict[str, Any]]]


def make_world(seed: int, reports: int, now: str, old: str) -> World:
    """Random records. Every tenth report is old, outside of the window of `counts`."""
    rng = random.Random(seed)

    def place() -> dict[str, float]:
        return {"lat": 33.6 + rng.uniform(-0.04, 0.04), "lon": -117.8 + rng.uniform(-0.04, 0.04)}

    users = [f"u{n}" for n in range(12)]
    events = [
        {
            "id": f"r{n}",
            "kind": rng.choice(KINDS),
            "area": rng.choice(AREAS),
            "severity": rng.randrange(10),
            **place(),
            "at": old if n % 10 == 9 else now,
        }
        for n in range(reports)
    ]
    wanted: list[tuple[str, dict[str, Any]]] = [("of_kind", {"kind": kind}) for kind in KINDS]
    wanted += [("in_area", {"area": area, "least": least}) for area in AREAS for least in (2, 6)]
    wanted += [("severe", {"least": least}) for least in (1, 4, 8)]
    wanted += [("near_place", {**place(), "radius": radius}) for radius in (60.0, 500.0, 1500.0, 1500.0, 5000.0)]
    wanted += [("near_me", {"user": user, "radius": rng.choice((800.0, 2500.0))}) for user in users]
    wanted += [("by_period", {"kind": kind}) for kind in KINDS[:2]]
    wanted += [("counts", {"area": area}) for area in AREAS[:2]]
    return World(
        shelters=[{"name": f"s{n}", "is_open": n % 3 != 0, **place()} for n in range(20)],
        locations=[{"user": user, **place()} for user in users],
        reports=events,
        subscriptions=wanted,
    )


def expected(world: World, name: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a subscription to one of the channels that report each record once, in any order."""
    where = {user["user"]: user for user in world.locations}
    rows: list[dict[str, Any]] = []
    for report in world.reports:
        match name:
            case "of_kind" if report["kind"] == params["kind"]:
                rows.append({"id": report["id"], "severity": report["severity"]})
            case "in_area" if report["area"] == params["area"] and report["severity"] > params["least"]:
                rows.append({"id": report["id"]})
            case "severe" if report["severity"] > params["least"]:
                rows.append({"id": report["id"]})
            case "near_place" if metres(report, params) <= params["radius"]:
                rows.append({"id": report["id"]})
            case "near_me" if metres(report, where[params["user"]]) <= params["radius"]:
                rows.append({"id": report["id"], "shelter": nearest_open(world, report)})
            case "by_period" if report["kind"] == params["kind"]:
                rows.append({"id": report["id"], "area": report["area"]})
    return rows


def counted(world: World, area: str, recent: str) -> dict[str, int]:
    """The rows of the last execution of `counts`."""
    found: dict[str, int] = {}
    for report in world.reports:
        if report["area"] == area and report["at"] == recent:
            found[report["kind"]] = found.get(report["kind"], 0) + 1
    return found


def nearest_open(world: World, report: dict[str, Any]) -> str | None:
    near = [(metres(report, s), s["name"]) for s in world.shelters if s["is_open"] and metres(report, s) <= _REACH]
    return min(near)[1] if near else None


def metres(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Great-circle distance from unit vectors: not the formula of the query."""

    def vector(point: dict[str, Any]) -> tuple[float, float, float]:
        lat, lon = math.radians(point["lat"]), math.radians(point["lon"])
        return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)

    a, b = vector(one), vector(other)
    cross = math.hypot(a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    return 6_371_008.8 * math.atan2(cross, sum(x * y for x, y in zip(a, b, strict=True)))
