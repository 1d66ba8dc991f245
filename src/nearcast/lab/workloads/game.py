"""Game avatars: the second scenario of *ePulsar*, Section 5.1.2.

Players in cities with known round trips form groups; an avatar stays in one for a while, then joins another.
Each avatar has a topic to which its actions are published and which the others of its group subscribe to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from nearcast.coordinates.geography import great_circle_km
from nearcast.errors import InputError
from nearcast.lab.workloads.formats import FIBRE_KM_PER_MS, Cities
from nearcast.lab.workloads.network_embedding import network_coordinates
from nearcast.lab.workloads.schedule import JOIN, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, ScheduleBuilder, ticks
from nearcast.lab.workloads.uav import coordinate_columns
from nearcast.lab.workloads.workload import SiteMap, Workload

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["GameParameters", "GroupChange", "game", "generate_cities", "group_changes", "spread_out"]


@dataclass(frozen=True)
class GameParameters:
    """Defaults are the paper's (Section 5.8.2). `rate_scale` thins the schedule, not the tables."""

    cities: int = 5
    avatars: int = 64
    groups: int = 8
    dwell: Literal["uniform", "exponential"] = "uniform"
    shortest_s: float = 30.0
    longest_s: float = 60.0
    rate: float = 300.0
    rate_scale: float = 0.01
    size: int = 998
    bound_ms: float = 100.0
    access_ms: float = 5.0
    rate_limit: float = 200_000.0
    duration_s: float = 600.0
    seed: int = 1


@dataclass(frozen=True)
class GroupChange:
    """An avatar that leaves its group for another one."""

    time_s: float
    avatar: int
    old: int
    new: int


_CITIES = {
    "NewYork": (40.71, -74.01), "LosAngeles": (34.05, -118.24), "Chicago": (41.88, -87.63),
    "Dallas": (32.78, -96.80), "Seattle": (47.61, -122.33), "Miami": (25.76, -80.19),
    "Denver": (39.74, -104.99), "Atlanta": (33.75, -84.39),
    "Boston": (42.36, -71.06), "Phoenix": (33.45, -112.07),
}  # fmt: skip


def generate_cities() -> Cities:
    """Ten cities of the USA; the round trip is that of a fibre half as long again as the great circle."""
    lat, lon = np.array(list(_CITIES.values())).T
    distance = great_circle_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :])
    return Cities(list(_CITIES), lat, lon, 2 * 1.5 * distance / FIBRE_KM_PER_MS, {})


def game(known: Cities, p: GameParameters) -> Workload:
    """Avatars spread over cities, groups that change, a topic per avatar."""
    if not 1 <= p.cities <= len(known.names):
        raise InputError(f"cities is {p.cities}; 1 to {len(known.names)} are known")
    if not 1 <= p.groups <= p.avatars:
        raise InputError(f"groups is {p.groups}; 1 to {p.avatars} (the number of avatars) are possible")
    rng = np.random.default_rng(p.seed)
    picked = spread_out(known.rtt_ms, p.cities)
    cities = [known.names[c] for c in picked]
    city = rng.integers(p.cities, size=p.avatars)
    names = [f"player{n}" for n in range(p.avatars)]
    topics = [f"avatar{n}" for n in range(p.avatars)]
    lon, lat = known.lon[picked], known.lat[picked]

    events = ScheduleBuilder(names, topics, cities)
    everyone = np.arange(p.avatars)
    events.add(JOIN, 0.0, everyone, site=city, x=lon[city], y=lat[city])
    group, changes = _play_groups(p, rng, events)
    when, who = ticks(rng, p.avatars, 1 / (p.rate * p.rate_scale), 0.0, p.duration_s)
    events.add(PUBLISH, when, who, who, x=lon[city[who]], y=lat[city[who]], size=p.size)

    topic, subscriber = np.nonzero((group[:, None] == group[None, :]) & ~np.eye(p.avatars, dtype=bool))
    client = np.append(everyone, subscriber)
    point = network_coordinates(known.rtt_ms[np.ix_(picked, picked)] / 2)
    listeners = np.bincount(topic, minlength=p.avatars)
    tables = {
        "topics": {
            "topic": topics, "bound_ms": np.full(p.avatars, p.bound_ms), "rate_out": p.rate * listeners,
        },
        "clients": {
            "topic": np.array(topics, dtype=object)[np.append(everyone, topic)],
            "client": np.array(names, dtype=object)[client],
            "role": np.repeat(np.array(["pub", "sub"], dtype=object), [p.avatars, len(subscriber)]),
            **coordinate_columns(point[city[client]], np.full(len(client), p.access_ms)),
        },
        "sites": {
            "site": cities, **coordinate_columns(point, np.zeros(p.cities)),
            "rate_limit": np.full(p.cities, p.rate_limit),
        },
        # Before anybody has thought about it, topics are spread by a hash: here by their number.
        "current": {"topic": topics, "site": np.array(cities, dtype=object)[everyone % p.cities]},
    }  # fmt: skip
    error = _relative_error(point, known.rtt_ms[np.ix_(picked, picked)] / 2)
    about = {
        "cities": p.cities, "avatars": p.avatars, "groups": p.groups, "dwell": p.dwell,
        "group_changes": changes, "rate": p.rate, "rate_scale": p.rate_scale, "bound_ms": p.bound_ms,
        "duration_s": p.duration_s,
        "median_coordinate_error": error, "seed": p.seed,
    }  # fmt: skip
    plan = "partition --topics topics.csv --clients clients.csv --sites sites.csv --current current.csv"
    load = np.bincount(city, minlength=p.cities).astype(np.float64)
    places = SiteMap(cities, lon, lat, load, ("longitude", "latitude"))
    return Workload("game", about, plan, tables, places, events.build(), known.skipped)


def group_changes(p: GameParameters, rng: np.random.Generator) -> tuple[Ints, list[GroupChange]]:
    """The group of each avatar at first, and who joins another one when."""
    group = rng.permutation(np.arange(p.avatars) % p.groups)
    first = group.copy()
    leaves = _dwell(p, rng, p.avatars)
    changes = []
    while (now := float(leaves.min())) < p.duration_s and p.groups > 1:
        avatar = int(np.argmin(leaves))
        old = int(group[avatar])
        group[avatar] = new = (old + int(rng.integers(1, p.groups))) % p.groups
        changes.append(GroupChange(now, avatar, old, new))
        leaves[avatar] = now + _dwell(p, rng, 1)[0]
    return first, changes


def _play_groups(p: GameParameters, rng: np.random.Generator, events: ScheduleBuilder) -> tuple[Ints, int]:
    """Subscribe avatars to the others of their group, again after each change; the last groups, changes."""
    group, changes = group_changes(p, rng)
    together = [set(np.flatnonzero(group == g).tolist()) for g in range(p.groups)]
    for a in range(p.avatars):
        for b in together[group[a]] - {a}:
            events.add(SUBSCRIBE, 0.0, a, b)
    for change in changes:
        a = change.avatar
        together[change.old].remove(a)
        for kind, others in ((UNSUBSCRIBE, together[change.old]), (SUBSCRIBE, together[change.new])):
            if others:
                peers = sorted(others)
                events.add(kind, change.time_s, [a] * len(peers) + peers, peers + [a] * len(peers))
        together[change.new].add(a)
        group[a] = change.new
    return group, len(changes)


def _dwell(p: GameParameters, rng: np.random.Generator, number: int) -> Floats:
    if p.dwell == "uniform":
        return rng.uniform(p.shortest_s, p.longest_s, number)
    return rng.exponential((p.shortest_s + p.longest_s) / 2, number)


def spread_out(rtt: Floats, count: int) -> Ints:
    """The first city and then always the one farthest from those taken: a topology as wide as it can be."""
    taken = [0]
    while len(taken) < count:
        nearest = rtt[:, taken].min(axis=1)
        nearest[taken] = -1.0
        taken.append(int(np.argmax(nearest)))
    return np.array(taken)


def _relative_error(point: Floats, delay: Floats) -> float:
    a, b = np.triu_indices(len(delay), 1)
    if not len(a):
        return 0.0
    estimate = np.linalg.norm(point[a] - point[b], axis=1)
    return round(float(np.median(np.abs(estimate - delay[a, b]) / np.maximum(delay[a, b], 1e-9))), 4)
