"""Swarms of drones that fly from zone to zone: *ePulsar*, Sections 5.1.1 and 5.8.1, Fig. 8."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from nearcast.errors import InputError
from nearcast.lab.scenarios.scenario import CLOUD, Participant, Scenario, ScheduledChange, SubscribedSpan

__all__ = ["SwarmParameters", "swarms"]


@dataclass(frozen=True)
class SwarmParameters:
    """The paper's setup, but for `rate`: there a drone publishes 200 messages of 1 kB per second, on 48 cores.

    Delays are one way. Through its own zone a message takes 2 × 10 ms; through another at least 50.
    """

    seconds: float = 600.0
    swarms: int = 8
    drones: int = 8
    seed: int = 1
    zones: int = 4
    site_round_trip_ms: float = 30.0
    cloud_ms: float = 40.0
    access_ms: float = 10.0
    bound_ms: float = 40.0
    rate: float = 2.0
    size: int = 256
    shortest_s: float = 20.0
    longest_s: float = 60.0


def swarms(p: SwarmParameters) -> Scenario:
    """Each swarm is a node with its drones; a change of zone changes the node's delays.

    Random waypoint: the next zone is any other one, and the flight there takes `shortest_s` to `longest_s`. At the
    start each swarm is somewhere on its first flight.
    """
    if p.zones < 2:
        raise InputError(f"zones is {p.zones}; a swarm that changes zone needs at least 2")
    zones = [f"zone{z}" for z in range(p.zones)]
    between = dict.fromkeys(itertools.combinations(zones, 2), p.site_round_trip_ms / 2)
    between |= {(zone, CLOUD): p.cloud_ms for zone in zones}

    def ways(zone: str) -> dict[str, float]:
        others = dict.fromkeys(zones, p.access_ms + p.site_round_trip_ms / 2)
        return others | {zone: p.access_ms, CLOUD: p.access_ms + p.cloud_ms}

    nodes, participants, changes = {}, [], []
    for s in range(p.swarms):
        rng = np.random.default_rng((p.seed, s))
        name, topic = f"swarm{s}", f"swarm.{s}"
        zone = zones[int(rng.integers(p.zones))]
        nodes[name] = ways(zone)
        span = (SubscribedSpan(topic),)
        participants += [Participant(f"drone{s}-{d}", name, topic, span, mobile=True) for d in range(p.drones)]
        at = float(rng.uniform(0.1, 1.0) * rng.uniform(p.shortest_s, p.longest_s))
        while at < p.seconds:
            new = str(rng.choice([other for other in zones if other != zone]))
            changes.append(ScheduledChange(at, name, (topic,), (topic,), zone, new, name, ways(new)))
            zone, at = new, at + float(rng.uniform(p.shortest_s, p.longest_s))
    changes.sort(key=lambda change: change.at)
    note = f"{p.rate:g} messages/s and drone instead of the paper's 200, for a machine with two cores"
    return Scenario(
        "swarms", (*zones, CLOUD), between, nodes, tuple(participants), tuple(changes),
        p.bound_ms, p.rate, p.size, p.seconds, p.seed, note,
    )  # fmt: skip
