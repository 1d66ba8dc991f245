"""What a storage plan is asked for, what it is, and what it costs (Eq. 1-3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.placement.arrays import Bools, Floats, Ints
    from nearcast.placement.storage.network import Network

__all__ = ["Failure", "StorageInfeasibleError", "StoragePlan", "StorageProblem", "evaluate", "fail", "random_failures"]


class StorageInfeasibleError(InputError):
    """The stores cannot hold the replicas that are asked for."""


@dataclass(frozen=True)
class StorageProblem:
    """N nodes, T topics: r_i^t as `demand[t, i]`, M as `stores`, L as `capacity`, k_t as `replicas`.

    `sizes` are the topics' shares of a store's capacity (1 each in the paper); `publication` is the
    probability that a publication enters at a node (uniform by default).
    """

    network: Network
    demand: Floats
    stores: int
    capacity: float
    replicas: Ints
    sizes: Floats = field(default_factory=lambda: np.empty(0))
    publication: Floats = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        topics, nodes = self.demand.shape
        if not len(self.sizes):
            object.__setattr__(self, "sizes", np.ones(topics))
        if not len(self.publication):
            object.__setattr__(self, "publication", np.full(nodes, 1 / nodes))
        self._refuse_infeasible()

    def _refuse_infeasible(self) -> None:
        nodes = self.network.nodes
        if not 1 <= self.stores <= nodes:
            raise InputError(f"{self.stores} stores are asked for; the network has {nodes} nodes")
        if self.replicas.min() < 1 or self.replicas.max() > self.stores:
            topic = int(np.flatnonzero((self.replicas < 1) | (self.replicas > self.stores))[0])
            raise InputError(
                f"topic {topic} is to have {self.replicas[topic]} replicas; with {self.stores} stores "
                f"1 to {self.stores} are possible"
            )
        if self.sizes.max() > self.capacity:
            topic = int(self.sizes.argmax())
            raise InputError(f"topic {topic} has size {self.sizes[topic]:g}, a store holds {self.capacity:g}")
        needed, room = float(self.sizes @ self.replicas), self.stores * self.capacity
        if needed > room * (1 + 1e-12):
            raise StorageInfeasibleError(
                f"capacity too small: the replicas need {needed:g}, {self.stores} stores of "
                f"{self.capacity:g} have {room:g}"
            )


@dataclass(frozen=True)
class StoragePlan:
    """The stores S in the order they were chosen, and `placed[t, i]`: topic t has a replica at node i."""

    stores: Ints
    placed: Bools
    traffic: float
    mean_hops: float


@dataclass(frozen=True)
class Failure:
    """What is left when stores are down. `unserved` is the share of requests without a replica."""

    traffic: float
    mean_hops: float
    unserved: float


def evaluate(problem: StorageProblem, stores: Iterable[int] | Ints, placed: Bools) -> StoragePlan:
    """Cost of a placement: requests times distance to the closest replica, and hops per request."""
    left = fail(problem, placed, [])
    return StoragePlan(np.asarray(stores, dtype=np.int64), placed, left.traffic, left.mean_hops)


def fail(problem: StorageProblem, placed: Bools, failed: Iterable[int]) -> Failure:
    """The same while some nodes' stores are down: a request goes to the nearest store still online."""
    online = placed.copy()
    online[:, np.asarray(list(failed), dtype=np.int64)] = False
    network = problem.network
    traffic = hops = served = lost = 0.0
    for demand, row in zip(problem.demand, online, strict=True):
        holders = np.flatnonzero(row)
        if not len(holders):
            lost += float(demand.sum())
            continue
        # Eq. 2: every node l asks its closest replica n.
        nearest = network.distance[holders].argmin(axis=0)
        nodes = np.arange(network.nodes)
        traffic += float(demand @ network.distance[holders[nearest], nodes])
        hops += float(demand @ network.hops[holders[nearest], nodes])
        served += float(demand.sum())
    unserved = lost / (served + lost) if lost else 0.0
    return Failure(traffic, hops / served if served else 0.0, unserved)


def random_failures(problem: StorageProblem, plan: StoragePlan, down: int, draws: int, seed: int) -> Failure:
    """Means over random sets of `down` stores that are down at once (Fig. 9 has twenty draws)."""
    rng = np.random.default_rng(seed)
    left = [fail(problem, plan.placed, rng.choice(plan.stores, down, replace=False)) for _ in range(draws)]
    means = np.mean([(each.traffic, each.mean_hops, each.unserved) for each in left], axis=0)
    return Failure(*(float(value) for value in means))
