"""The nodes each topic prefers for its replicas: the greedy algorithm, repeated for every possible publisher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import depth_first_order

from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearcast.placement.arrays import Bools, Floats, Ints
    from nearcast.placement.progress import Advance
    from nearcast.placement.storage.network import Network

__all__ = ["greedy", "modified_greedy"]

# Topics handled together, so that their arrays stay in the processor's cache.
_BLOCK = 64


def greedy(network: Network, demand: Floats, replicas: Ints, origin: int) -> Bools:
    """Section 5.1: k_t stores per topic for content of server j = `origin`, each of the highest Gain.

    Requests travel the shortest path to j and stop at the first store on it, so a store at node i saves
    g_ij = p_ij · d_ij: the requests that pass through i, times the way from i to where they stop now.
    """
    return modified_greedy(network, demand, replicas, np.eye(network.nodes)[origin]) > 0


def modified_greedy(
    network: Network, demand: Floats, replicas: Ints, publication: Floats, advance: Advance = no_progress
) -> Floats:
    """Section 5.2: vectors s_t, how often each node is chosen when each node in turn is the server.

    `publication` weighs the turns. Weights that are all equal count 1, as in the paper's example.
    """
    turns = publication * (np.count_nonzero(publication) / publication.sum())
    # Topics with many replicas first: those that still choose are always the first of their block.
    order = np.argsort(-replicas, kind="stable")
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(order), _BLOCK)]
    left = [_topics_left(replicas[order[block]]) for block in blocks]
    passing = _Passing(demand[order])
    way = np.full((network.nodes, network.nodes), np.inf)
    votes = np.zeros(demand.shape)
    for done, origin in enumerate(_near_after_near(network, turns)):
        paths = _paths(network, origin, way)
        passing.turn_to(paths)
        for block, counts in zip(blocks, left, strict=True):
            for topics, nodes in _choose(passing.through[block].copy(), counts, paths):
                votes[block][topics, nodes] += turns[origin]
        way[paths.above, np.arange(network.nodes)[:, None]] = np.inf
        advance((done + 1) / np.count_nonzero(turns))
    result = np.empty_like(votes)
    result[order] = votes
    return result


def _topics_left(replicas: Ints) -> list[int]:
    """How many topics choose in each round."""
    return [int(np.count_nonzero(replicas > taken)) for taken in range(int(replicas[0]))]


def _near_after_near(network: Network, turns: Floats) -> list[int]:
    """The origins in an order in which neighbours follow each other: their paths are nearly the same."""
    nodes = np.arange(1, network.nodes)
    tree = coo_array((np.ones(len(nodes)), (network.next_hop[0, 1:], nodes)), shape=(network.nodes,) * 2)
    order = depth_first_order(tree.tocsr(), 0, return_predecessors=False)
    return [int(origin) for origin in order if turns[origin] > 0]


@dataclass(frozen=True)
class _Paths:
    """The shortest paths to one origin."""

    depth: Floats  # distance to the origin
    above: Ints  # [l, c]: the node c+1 hops from l towards the origin, then the origin again
    depth_above: Floats  # of those nodes
    way: Floats  # [i, l]: distance from l to i when i is on l's path, else infinite


def _paths(network: Network, origin: int, way: Floats) -> _Paths:
    """`way` is infinite but for its diagonal, and filled here: a new array for each origin would be slow."""
    nodes, depth = np.arange(network.nodes), network.distance[origin]
    parent = network.next_hop[origin].astype(np.int64)
    parent[origin] = origin
    steps = [parent]
    while (steps[-1] != origin).any():
        steps.append(parent[steps[-1]])
    above = np.stack(steps, axis=1)
    depth_above = depth[above]
    way[above, nodes[:, None]] = depth[:, None] - depth_above
    way[nodes, nodes] = 0.0
    return _Paths(depth, above, depth_above, way)


class _Passing:
    """`through[t, i]`: requests for topic t that pass through node i on their way to the origin."""

    def __init__(self, demand: Floats) -> None:
        self.through = demand.copy()
        self._requests = np.ascontiguousarray(demand.T)
        self._rows = self._requests.copy()  # the same by node, where adding nodes is fast
        self._parent = np.arange(len(self._rows))

    def turn_to(self, paths: _Paths) -> None:
        """Add up again, farthest first, only the nodes that others now come to or no longer come to."""
        parent, above = paths.above[:, 0], paths.above
        changed = np.flatnonzero(parent != self._parent)
        at_changed = np.zeros(len(parent), dtype=bool)
        at_changed[self._parent[changed]] = at_changed[parent[changed]] = True
        at_changed[above[at_changed]] = True
        nodes = np.flatnonzero(at_changed)
        nodes = nodes[np.argsort(-paths.depth[nodes], kind="stable")]
        by_parent = np.argsort(parent, kind="stable")
        bounds = np.searchsorted(parent[by_parent], np.stack([nodes, nodes + 1]))
        for node, start, end in zip(nodes.tolist(), *bounds.tolist(), strict=True):
            total = self._rows[node]
            total[:] = self._requests[node]
            for child in by_parent[start:end].tolist():
                if child != node:  # the origin is its own parent
                    total += self._rows[child]
        self.through[:, nodes] = self._rows[nodes].T
        self._parent = parent


def _choose(through: Floats, left: list[int], paths: _Paths) -> Iterator[tuple[Ints, Ints]]:
    """The rounds of the greedy algorithm for a block of topics; the first `left[r]` choose in round r.

    Yields the topics that chose a store in the round, and their stores.
    """
    depth = paths.depth
    # Rounding errors remain where nothing is left to gain; they must not choose a store.
    origin = int(depth.argmin())  # everything passes through it
    negligible = 1e-12 * through[:, origin] * depth.max()
    rows = np.arange(len(through))
    way = depth[None, :]  # from each node to where its requests stop now
    gain, nearer = through * way, np.empty_like(through)
    for count in [*left[1:], 0]:
        # Equal gains: from the origin downwards. Always the lowest number would favour a few nodes over all origins.
        topics = rows[: len(gain)]
        best = origin - gain[:, origin::-1].argmax(axis=1)
        if origin + 1 < gain.shape[1]:
            above = gain.shape[1] - 1 - gain[:, :origin:-1].argmax(axis=1)
            best = np.where(gain[topics, above] > gain[topics, best], above, best)
        gains = gain[topics, best] > negligible[: len(best)]
        yield topics[gains], best[gains]
        if not count:
            return
        topics, best, gain, through = topics[:count], best[:count], gain[:count], through[:count]
        # What stops here no longer passes the nodes from here to the store it went to.
        stop = depth[best] - (way[topics, best] if len(way) > 1 else way[0, best])
        between = paths.depth_above[best] > stop[:, None]
        through[topics[:, None], paths.above[best]] -= between * through[topics, best][:, None]
        # mode="clip": "raise" would copy through a buffer.
        reached = paths.way.take(best, axis=0, out=gain, mode="clip")
        way = np.minimum(way[:count], reached, out=nearer[:count])
        np.multiply(way, through, out=gain)
