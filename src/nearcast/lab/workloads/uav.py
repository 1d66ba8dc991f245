"""UAV swarms: the first scenario of *ePulsar*, Section 5.1.1.

Edge sites are the k-means centres of cell towers; a swarm of drones moves together by random waypoint and is
connected to the site of its zone. The leader commands on `follow_leader`, the others report on `sensor_data`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinates.geography import local_plane_km
from nearcast.errors import InputError
from nearcast.lab.workloads.formats import Positions
from nearcast.lab.workloads.mobility import random_waypoint
from nearcast.lab.workloads.network_embedding import DIMENSIONS, network_coordinates
from nearcast.lab.workloads.schedule import JOIN, MOVE, PUBLISH, SUBSCRIBE, ScheduleBuilder, ticks
from nearcast.lab.workloads.workload import Columns, SiteMap, Workload

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats

__all__ = ["UavParameters", "generate_towers", "uav"]


@dataclass(frozen=True)
class UavParameters:
    """Defaults are the paper's (Sections 5.1.1, 5.8.1). `rate_scale` thins the schedule, not the tables.

    `access_ms` is ours, LTE one way: 16 ms end to end through a swarm's own zone, 46 ms through another.
    """

    zones: int = 4
    swarms: int = 8
    drones: int = 8
    speed_m_s: float = 50.0
    rate: float = 200.0
    rate_scale: float = 0.01
    size: int = 1024
    bound_ms: float = 40.0
    access_ms: float = 8.0
    site_rtt_ms: float = 30.0
    rate_limit: float = 20_000.0
    duration_s: float = 600.0
    seed: int = 1


def generate_towers(towers: int, seed: int) -> Positions:
    """Generated towers: a dense centre and suburbs, within some 10 km."""
    rng = np.random.default_rng(seed)
    suburb = rng.normal(0, 0.04, (6, 2))[rng.integers(6, size=towers)]
    lat, lon = (suburb + rng.normal(0, 0.012, (towers, 2))).T + np.array([[33.75], [-84.39]])
    unnamed = np.array([""] * towers, dtype=object)
    return Positions(lat, lon, unnamed, np.zeros(towers), {})


def uav(towers: Positions, p: UavParameters) -> Workload:
    """Zones from towers, swarms that fly across them, two topics per swarm."""
    from sklearn.cluster import KMeans

    if p.drones < 2:
        raise InputError(f"drones is {p.drones}; a swarm needs a leader and at least one follower")
    if not 1 <= p.zones <= len(towers.lat):
        raise InputError(f"zones is {p.zones}; 1 to {len(towers.lat)} (the number of towers) are possible")
    rng = np.random.default_rng(p.seed)
    centre = (float(np.mean(towers.lat)), float(np.mean(towers.lon)))
    tower = np.stack(local_plane_km(towers.lat, towers.lon, centre), axis=1)
    clusters = KMeans(p.zones, n_init=10, random_state=p.seed).fit(tower)
    zone_at = clusters.cluster_centers_

    times = np.arange(0.0, p.duration_s, 1.0)
    box = (*tower.min(axis=0), *tower.max(axis=0))
    x, y = random_waypoint(rng, p.swarms, box, p.speed_m_s / 1000, times)
    zone = np.argmin(np.hypot(x[..., None] - zone_at[:, 0], y[..., None] - zone_at[:, 1]), axis=2)

    sites = [f"zone{n}" for n in range(p.zones)]
    topics = [f"swarm{s}.{what}" for s in range(p.swarms) for what in ("follow_leader", "sensor_data")]
    names = [f"drone{s}-{d}" for s in range(p.swarms) for d in range(p.drones)]
    swarm, drone = np.divmod(np.arange(len(names)), p.drones)
    # The leader, drone 0, publishes on the even topic and listens on the odd one; the others do the opposite.
    writes, reads = 2 * swarm + (drone > 0), 2 * swarm + (drone == 0)

    events = ScheduleBuilder(names, topics, sites)
    events.add(JOIN, 0.0, np.arange(len(names)), site=zone[swarm, 0], x=x[swarm, 0], y=y[swarm, 0])
    events.add(SUBSCRIBE, 0.0, np.arange(len(names)), reads)
    crossing, second = np.nonzero(np.diff(zone, axis=1))
    second += 1
    for member in range(p.drones):
        where = {"site": zone[crossing, second], "x": x[crossing, second], "y": y[crossing, second]}
        events.add(MOVE, times[second], crossing * p.drones + member, **where)
    when, who = ticks(rng, len(names), 1 / (p.rate * p.rate_scale), 0.0, p.duration_s)
    at = np.minimum(when.astype(np.int64), len(times) - 1)
    events.add(PUBLISH, when, who, writes[who], x=x[swarm[who], at], y=y[swarm[who], at], size=p.size)

    one_way = np.full((p.zones, p.zones), p.site_rtt_ms / 2)
    np.fill_diagonal(one_way, 0.0)
    point = network_coordinates(one_way)
    rows = np.arange(len(names))
    role = {"topic": np.append(writes, reads), "client": np.append(rows, rows)}
    is_pub = np.arange(2 * len(names)) < len(names)
    tables = {
        "topics": {
            "topic": topics, "bound_ms": np.full(len(topics), p.bound_ms),
            "rate_out": np.full(len(topics), p.rate * (p.drones - 1)),
        },
        "clients": {
            "topic": np.array(topics, dtype=object)[role["topic"]],
            "client": np.array(names, dtype=object)[role["client"]],
            "role": np.where(is_pub, "pub", "sub").astype(object),
            **coordinate_columns(point[zone[swarm[role["client"]], -1]], np.full(len(is_pub), p.access_ms)),
        },
        "sites": {
            "site": sites, **coordinate_columns(point, np.zeros(p.zones)),
            "rate_limit": np.full(p.zones, p.rate_limit),
        },
        # Where the topics are when the swarms have flown on: the site of their first zone.
        "current": {"topic": topics, "site": np.array(sites, dtype=object)[np.repeat(zone[:, 0], 2)]},
    }  # fmt: skip
    about = {
        "zones": p.zones, "towers": len(tower), "swarms": p.swarms, "drones": len(names),
        "topics": len(topics), "moves": len(crossing) * p.drones, "rate": p.rate, "rate_scale": p.rate_scale,
        "bound_ms": p.bound_ms, "duration_s": p.duration_s, "seed": p.seed,
    }  # fmt: skip
    plan = "partition --topics topics.csv --clients clients.csv --sites sites.csv --current current.csv"
    places = SiteMap(sites, zone_at[:, 0], zone_at[:, 1], np.bincount(clusters.labels_).astype(np.float64))
    return Workload("uav", about, plan, tables, places, events.build(), towers.skipped)


def coordinate_columns(point: Floats, height: Floats) -> Columns:
    """The columns c0…c7,height of a table. Distances are one-way delays in ms, so that two legs add up."""
    return {**{f"c{axis}": point[:, axis].round(4) for axis in range(DIMENSIONS)}, "height": height}
