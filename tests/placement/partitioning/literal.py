"""ePulsar's formulas and Algorithm 1 as the paper writes them: one topic, site and client at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.placement.partitioning import PartitionClients, PartitionSites, PartitionTopics, aggregate

if TYPE_CHECKING:
    import numpy as np

Node = tuple[tuple[float, ...], float]


@dataclass(frozen=True)
class Instance:
    """Clients of topics, sites, and where the topics are now."""

    clients: PartitionClients
    sites: PartitionSites
    site: np.ndarray
    bound: np.ndarray
    rate: np.ndarray

    def topics(self) -> PartitionTopics:
        return aggregate(self.clients, self.sites, self.site, self.bound, self.rate)

    def node(self, b: int) -> Node:
        return tuple(self.sites.position[b]), float(self.sites.height[b])

    def members(self, t: int, side: np.ndarray) -> list[Node]:
        rows = [i for i in range(len(self.clients.topic)) if self.clients.topic[i] == t and side[i]]
        return [(tuple(self.clients.position[i]), float(self.clients.height[i])) for i in rows]

    def sides(self, t: int) -> tuple[list[Node], list[Node]]:
        return self.members(t, self.clients.produces), self.members(t, self.clients.consumes)


def d(a: Node, b: Node) -> float:
    return math.dist(a[0], b[0]) + a[1] + b[1]


def centre(nodes: list[Node]) -> Node:
    return tuple(sum(axis) / len(nodes) for axis in zip(*(n[0] for n in nodes), strict=True)), 0.0


def worst_latency(instance: Instance, t: int, b: int) -> float:
    """E(t) with topic t at site b."""
    here = instance.node(b)
    return sum(max((d(node, here) for node in side), default=0.0) for side in instance.sides(t))


def centroid_estimate(instance: Instance, t: int, b: int) -> float:
    """W(t, b)."""
    total = 0.0
    for side in instance.sides(t):
        if side:
            middle = centre(side)
            total += max(d(node, middle) for node in side) + d(middle, instance.node(b))
    return total


def limits(instance: Instance) -> list[float]:
    found = []
    for b in range(len(instance.sites)):
        limit = float(instance.sites.rate_limit[b])
        load = sum(r for r, host in zip(instance.rate, instance.site, strict=True) if host == b)
        for used in instance.sites.utilisation[b] if instance.sites.utilisation.size else ():
            if load > 0 and used > 0:
                limit = min(limit, load * 0.85 / used)
            elif used > 0.85:
                limit = 0.0
        found.append(limit)
    return found


def algorithm_1(instance: Instance, estimate: object) -> list[int]:
    """PerformRepartitioning and PlaceTopics, line by line, for topics that all have a site."""
    sites, limit = range(len(instance.sites)), limits(instance)
    partition = [int(b) for b in instance.site]
    topics = range(len(partition))

    def load(b: int) -> float:
        return float(sum(instance.rate[t] for t in topics if partition[t] == b))

    migrating = [t for t in topics if worst_latency(instance, t, partition[t]) > instance.bound[t]]
    for b in sites:
        left = load(b)
        for t in sorted((t for t in topics if partition[t] == b), key=lambda t: -instance.rate[t]):
            if left <= limit[b]:
                break
            left -= float(instance.rate[t])
            migrating.append(t)
    migrating = sorted(set(migrating))
    candidates = {}
    for t in migrating:
        cost = {b: estimate(instance, t, b) for b in sites}  # type: ignore[operator]
        feasible = [b for b in sites if cost[b] <= instance.bound[t]]
        candidates[t] = sorted(feasible or sites, key=cost.__getitem__)
    for t in sorted(migrating, key=lambda t: len(candidates[t])):
        for b in candidates[t]:
            without = load(b) - (instance.rate[t] if partition[t] == b else 0)
            if without + instance.rate[t] <= limit[b]:
                partition[t] = b
                break
    return partition
