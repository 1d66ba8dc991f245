"""The network between nodes: distances, and the tree of shortest paths that leads to each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from nearcast.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.placement.arrays import Floats, Ints

__all__ = ["Network", "from_edges", "network"]


@dataclass(frozen=True)
class Network:
    """`distance[i, j]` from node i to node j; `next_hop[j, i]` is the neighbour of i on its path to j."""

    distance: Floats
    next_hop: NDArray[np.int32]
    hops: Ints

    @property
    def nodes(self) -> int:
        return len(self.distance)


def network(graph: Any) -> Network:
    """All shortest paths of an undirected graph given as a SciPy sparse matrix of link costs.

    Trees and general graphs alike. A link named in one direction counts in both.
    """
    # Dijkstra, never breadth-first: equal costs give the same answer and unequal ones need it.
    distance, next_hop = dijkstra(graph, directed=False, return_predecessors=True)
    if not np.isfinite(distance).all():
        node = int(np.flatnonzero(~np.isfinite(distance[0]))[0])
        raise InputError(f"the network is not connected: node {node} cannot be reached from node 0")
    return Network(distance, next_hop, _hops(next_hop))


def from_edges(nodes: int, a: Ints, b: Ints, cost: Floats | None = None) -> Network:
    """The network with these links; each costs 1 (a hop) by default."""
    weight = np.ones(len(a)) if cost is None else cost
    return network(coo_array((weight, (a, b)), shape=(nodes, nodes)).tocsr())


def _hops(next_hop: NDArray[np.int32]) -> Ints:
    """Links on the cheapest path between all pairs, by doubling the stride of the path pointers."""
    nodes = len(next_hop)
    target = np.arange(nodes)[:, None]
    ahead = np.where(next_hop < 0, target, next_hop).astype(np.int64)
    hops = (next_hop >= 0).astype(np.int64)
    while (ahead != target).any():
        hops += np.take_along_axis(hops, ahead, axis=1)
        ahead = np.take_along_axis(ahead, ahead, axis=1)
    return hops
