"""The scene of the emergencies: who moves where, what is reported when, where the shelters are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError
from nearcast.lab.workloads.mobility import random_waypoint, sampled_traces

if TYPE_CHECKING:
    from nearcast.lab.workloads.formats import Incidents, Positions
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["TYPES", "EmergencyParameters", "Scene", "generate_scene", "real_scene"]

TYPES = ("fire", "flood", "storm", "earthquake", "accident", "outage", "gas_leak", "collapse")


@dataclass(frozen=True)
class EmergencyParameters:
    """Defaults are the paper's testbed: 5 sites, 400 users, 10,000 reports in 30 minutes, 200 shelters."""

    users: int = 400
    sites: int = 5
    reports: int = 10_000
    shelters: int = 200
    field_km: float = 10.0
    areas_per_side: int = 6
    near_km: float = 1.0
    speed_m_s: float = 8.0
    location_period_s: float = 10.0
    login_s: float = 240.0
    duration_s: float = 1800.0
    unsubscribe_share: float = 0.2
    logout_share: float = 0.2
    seed: int = 1


@dataclass(frozen=True)
class Scene:
    """What happens on the field (km): users by time, reports in order of time, shelters."""

    times: Floats
    user_x: Floats
    user_y: Floats
    report_s: Floats
    report_type: Ints
    report_x: Floats
    report_y: Floats
    report_size: Ints
    shelter: tuple[str, ...]
    shelter_x: Floats
    shelter_y: Floats
    skipped: dict[str, int]


def generate_scene(p: EmergencyParameters) -> Scene:
    """A generated scene: users by random waypoint, reports in clusters, shelters anywhere."""
    rng = np.random.default_rng(p.seed)
    times = np.arange(0.0, p.duration_s, p.location_period_s)
    field = (0.0, 0.0, p.field_km, p.field_km)
    user_x, user_y = random_waypoint(rng, p.users, field, p.speed_m_s / 1000, times)
    # One publisher per type rushes about and reports what it sees around it.
    kind = rng.integers(len(TYPES), size=p.reports)
    when = np.sort(rng.uniform(0, p.duration_s, p.reports))
    path_x, path_y = random_waypoint(rng, len(TYPES), field, 5 * p.speed_m_s / 1000, times)
    step = np.minimum((when / p.location_period_s).astype(np.int64), len(times) - 1)
    around = rng.normal(0, p.near_km / 2, (2, p.reports))
    x = np.clip(path_x[kind, step] + around[0], 0, p.field_km)
    y = np.clip(path_y[kind, step] + around[1], 0, p.field_km)
    size = rng.integers(200, 701, p.reports)
    shelter_x, shelter_y = rng.uniform(0, p.field_km, (2, p.shelters))
    names = tuple(f"shelter{n}" for n in range(p.shelters))
    return Scene(times, user_x, user_y, when, kind, x, y, size, names, shelter_x, shelter_y, {})


# Words in the cause of an outage report, and the type of emergency they stand for. Most causes are unknown.
_CAUSES = {
    "fire": "fire", "weather": "storm", "lightning": "storm", "tree": "storm", "downed": "storm",
    "vehicle": "accident", "foreign object": "accident", "underground": "flood", "pole": "collapse",
    "transformer": "gas_leak", "planned": "outage", "repair": "outage", "equipment": "earthquake",
}  # fmt: skip


def real_scene(
    p: EmergencyParameters,
    outages: Incidents | None = None,
    shelters: Incidents | None = None,
    traces: Positions | None = None,
) -> Scene:
    """Real reports, shelters or traces where given, generated ones where not.

    Each source keeps its own shape and is scaled to the field: the published sets are of different places.
    The reports are the first ones in the file, their time is scaled to the duration. Where the text of a
    report does not tell its type, one is drawn.
    """
    made = generate_scene(p)
    rng = np.random.default_rng(p.seed)
    new = dict(made.__dict__)
    skipped: dict[str, int] = {}
    if outages is not None:
        rows = np.flatnonzero(outages.operation != "remove")[: p.reports]
        if len(rows) < 2:
            raise InputError("the outage file has fewer than two reports")
        span = outages.time_s[rows]
        new["report_s"] = (span - span[0]) / max(span[-1] - span[0], 1e-9) * p.duration_s * (1 - 1e-9)
        new["report_x"], new["report_y"] = _to_field(outages.lon[rows], outages.lat[rows], p.field_km)
        new["report_type"] = _types([outages.text[row] for row in rows], rng)
        new["report_size"] = np.array([200 + min(len(outages.text[row]), 500) for row in rows])
        skipped |= {f"report: {reason}": count for reason, count in outages.skipped.items()}
    if shelters is not None:
        # The last word about each shelter, unless that is its removal.
        last = {name: row for row, name in enumerate(shelters.name)}
        open_ = [row for row in last.values() if shelters.operation[row] != "remove"][: p.shelters]
        new["shelter"] = tuple(str(shelters.name[row]) for row in open_)
        new["shelter_x"], new["shelter_y"] = _to_field(shelters.lon[open_], shelters.lat[open_], p.field_km)
        skipped |= {f"shelter: {reason}": count for reason, count in shelters.skipped.items()}
    if traces is not None:
        x, y = sampled_traces(traces, p.users, made.times)
        if len(x) < p.users:
            raise InputError(f"the traces have {len(x)} movers; {p.users} users are wanted")
        new["user_x"], new["user_y"] = _to_field(x, y, p.field_km)
        skipped |= {f"trace: {reason}": count for reason, count in traces.skipped.items()}
    return Scene(**{**new, "skipped": skipped})


def _to_field(x: Floats, y: Floats, field_km: float) -> tuple[Floats, Floats]:
    """Scale positions to the field by their own middle 98 %, the rest on its edge."""
    placed = []
    for axis in (x, y):
        low, high = np.quantile(axis, [0.01, 0.99])
        placed.append(np.clip((axis - low) / max(high - low, 1e-9), 0, 1) * field_km)
    return placed[0], placed[1]


def _types(texts: list[str], rng: np.random.Generator) -> Ints:
    drawn = rng.integers(len(TYPES), size=len(texts))
    for row, text in enumerate(texts):
        cause = text.rsplit("|", 1)[-1].lower()
        found = next((kind for word, kind in _CAUSES.items() if word in cause), None)
        if found is not None:
            drawn[row] = TYPES.index(found)
    return drawn
