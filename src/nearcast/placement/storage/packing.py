"""Packing replicas into stores of limited capacity, by exchange where no store has room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.storage.problem import StorageInfeasibleError

if TYPE_CHECKING:
    from nearcast.placement.arrays import Bools, Ints
    from nearcast.placement.storage.problem import StorageProblem

__all__ = ["StorePacking", "pack_largest_first"]


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

    def _remove(self, topic: int, node: int) -> None:
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
                    self._remove(guest, full)
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
