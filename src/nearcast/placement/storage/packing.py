"""Packing replicas into stores of limited capacity, by exchange where no store has room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.storage.problem import StorageInfeasibleError

if TYPE_CHECKING:
    from nearcast.placement.arrays import Bools, Floats, Ints
    from nearcast.placement.storage.problem import StorageProblem

__all__ = ["StorePacking", "pack_largest_first", "restored"]


class StorePacking:
    """The replicas placed so far and the room left at each store; a node without a store has no room."""

    def __init__(self, problem: StorageProblem, stores: Ints) -> None:
        self.problem = problem
        self.stores = stores
        self.placed = np.zeros(problem.demand.shape, dtype=bool)
        self.room = np.full(problem.network.nodes, -np.inf)
        self.room[stores] = problem.capacity * (1 + 1e-12)

    def fits(self, topic: int, nodes: Ints) -> Bools:
        """Which of the nodes can take a replica of the topic as they are."""
        return np.asarray(~self.placed[topic, nodes] & (self.room[nodes] >= self.problem.sizes[topic]))

    def add(self, topic: int, node: int) -> None:
        self.placed[topic, node] = True
        self.room[node] -= self.problem.sizes[topic]

    def remove(self, topic: int, node: int) -> None:
        self.placed[topic, node] = False
        self.room[node] += self.problem.sizes[topic]

    def put_by_exchange(self, topic: int, preferred: Ints) -> int | None:
        """The room left is at stores that have the topic: another topic moves there from a full store, which is given.

        With topics of one size this always succeeds: a full store has more topics than one with room.
        """
        sizes = self.problem.sizes
        for full in preferred:
            if self.placed[topic, full]:
                continue
            for guest in np.flatnonzero(self.placed[:, full]).tolist():
                if self.room[full] + sizes[guest] < sizes[topic]:
                    continue
                to = self.stores[(self.room[self.stores] >= sizes[guest]) & ~self.placed[guest, self.stores]]
                if len(to):
                    self.remove(guest, full)
                    self.add(guest, int(to[0]))
                    self.add(topic, int(full))
                    return int(full)
        return None


def pack_largest_first(problem: StorageProblem, stores: Ints) -> Bools:
    """Any placement that fits, for awkward sizes: largest topic first, emptiest store first."""
    packing = StorePacking(problem, stores)
    for topic in np.argsort(-problem.sizes, kind="stable"):
        for _ in range(problem.replicas[topic]):
            emptiest = stores[np.argsort(-packing.room[stores], kind="stable")]
            fits = packing.fits(topic, emptiest)
            if fits.any():
                packing.add(topic, int(emptiest[fits.argmax()]))
            elif packing.put_by_exchange(topic, emptiest) is None:
                raise StorageInfeasibleError(
                    f"capacity too small: no way was found to pack topics of these sizes into "
                    f"{len(stores)} stores of {problem.capacity:g}"
                )
    return packing.placed


def restored(problem: StorageProblem, stores: Ints, held: Bools, least: Ints) -> Bools | None:
    """What the stores hold, with new replicas for topics that have fewer than `least`; None if there is no room.

    A new replica takes the place at which it costs least; in a full store a topic with more than its least gives way.
    """
    packing = StorePacking(problem, stores)
    for topic, node in np.argwhere(held[:, stores]):
        packing.add(topic, int(stores[node]))
    if (packing.room[stores] < 0).any():
        return None
    requests = problem.demand.sum(axis=1)
    for topic in np.argsort(-requests, kind="stable").tolist():
        while packing.placed[topic].sum() < least[topic]:
            if not _make_replica(problem, packing, topic, least):
                return None
    return packing.placed


def _make_replica(problem: StorageProblem, packing: StorePacking, topic: int, least: Ints) -> bool:
    """Add one replica where it changes the traffic most for the better; whether there is such a place."""
    sizes, best = problem.sizes, (np.inf, -1, -1)
    for node in packing.stores[~packing.placed[topic, packing.stores]].tolist():
        joined = packing.placed[topic].copy()
        joined[node] = True
        change = _traffic(problem, topic, joined)
        if packing.room[node] >= sizes[topic]:
            best = min(best, (change, node, -1))
            continue
        for guest in np.flatnonzero(packing.placed[:, node]).tolist():
            left = packing.placed[guest].copy()
            left[node] = False
            if left.sum() >= least[guest] and packing.room[node] + sizes[guest] >= sizes[topic]:
                more = _traffic(problem, guest, left) - _traffic(problem, guest, packing.placed[guest])
                best = min(best, (change + more, node, guest))
    _, node, guest = best
    if node < 0:
        return packing.put_by_exchange(topic, packing.stores) is not None
    if guest >= 0:
        packing.remove(guest, node)
    packing.add(topic, node)
    return True


def _traffic(problem: StorageProblem, topic: int, holders: Bools) -> float:
    """Eq. 2 of one topic; without a replica a request goes farther than any could."""
    distance: Floats = problem.network.distance[holders].min(axis=0, initial=2 * problem.network.distance.max())
    return float(problem.demand[topic] @ distance)
