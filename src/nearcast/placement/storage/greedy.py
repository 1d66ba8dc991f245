"""Where each topic would like its replicas: the greedy algorithm, repeated for every possible publisher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from nearcast.placement.storage.network import Network

__all__ = ["greedy", "modified_greedy"]

# Topics handled together, so that their arrays stay in the processor's cache.
_BLOCK = 64


def greedy(
    network: Network, demand: NDArray[np.float64], replicas: NDArray[np.int64], origin: int
) -> NDArray[np.bool_]:
    """Section 5.1: k_t stores per topic for content of server j = `origin`, each of the highest Gain.

    Requests travel the shortest path to j and stop at the first store on it, so a store at node i saves
    g_ij = p_ij · d_ij: the requests that pass through i, times the way from i to where they stop now.
    """
    votes = np.zeros(demand.shape)
    _vote(votes, 1.0, network, demand, replicas, origin)
    return votes > 0


def modified_greedy(
    network: Network,
    demand: NDArray[np.float64],
    replicas: NDArray[np.int64],
    publication: NDArray[np.float64],
    advance: Callable[[float], None] | None = None,
) -> NDArray[np.float64]:
    """Section 5.2: vectors s_t, how often each node is chosen when each node in turn is the server.

    `publication` weighs the turns. Weights that are all equal count 1, as in the paper's example.
    """
    turns = publication * (np.count_nonzero(publication) / publication.sum())
    votes = np.zeros(demand.shape)
    for origin in np.flatnonzero(turns):
        _vote(votes, float(turns[origin]), network, demand, replicas, int(origin))
        if advance is not None:
            advance((origin + 1) / network.nodes)
    return votes


def _vote(
    votes: NDArray[np.float64],
    turn: float,
    network: Network,
    demand: NDArray[np.float64],
    replicas: NDArray[np.int64],
    origin: int,
) -> None:
    """Add `turn` to the votes of every store the greedy algorithm chooses for this origin."""
    paths = _paths(network, origin)
    through = _through(demand, paths)
    # Topics with many replicas first: those that still choose are always the first of their block.
    order = np.argsort(-replicas, kind="stable")
    for start in range(0, len(demand), _BLOCK):
        block = order[start : start + _BLOCK]
        for topics, nodes in _choose(np.ascontiguousarray(through[:, block].T), replicas[block], paths):
            votes[block[topics], nodes] += turn


@dataclass(frozen=True)
class _Paths:
    """The shortest paths to one origin."""

    depth: NDArray[np.float64]  # distance to the origin
    above: NDArray[np.int64]  # [l, c]: the node c+1 hops from l towards the origin, then the origin again
    way: NDArray[np.float64]  # [i, l]: distance from l to i when i is on l's path, else infinite


def _paths(network: Network, origin: int) -> _Paths:
    nodes, depth = np.arange(network.nodes), network.distance[origin]
    parent = network.next_hop[origin].astype(np.int64)
    parent[origin] = origin
    steps = [parent]
    while (steps[-1] != origin).any():
        steps.append(parent[steps[-1]])
    above = np.stack(steps, axis=1)
    way = np.full((network.nodes, network.nodes), np.inf)
    way[above, nodes[:, None]] = depth[:, None] - depth[above]
    way[nodes, nodes] = 0.0
    return _Paths(depth, above, way)


def _through(demand: NDArray[np.float64], paths: _Paths) -> NDArray[np.float64]:
    """`[i, t]`: requests for topic t that pass through node i on their way to the origin."""
    passing = np.array(demand.T, order="C")
    parent = paths.above[:, 0].tolist()
    outwards = np.argsort(paths.depth, kind="stable").tolist()
    for node in reversed(outwards[1:]):
        passing[parent[node]] += passing[node]
    return passing


def _choose(
    through: NDArray[np.float64], replicas: NDArray[np.int64], paths: _Paths
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The rounds of the greedy algorithm for a block of topics, those with most replicas first.

    Yields the topics that chose a store in the round, and their stores.
    """
    rows = np.arange(len(through))
    way = np.tile(paths.depth, (len(through), 1))  # from each node to where its requests stop now
    gain, reached = np.empty_like(way), np.empty_like(way)
    # Rounding leaves crumbs where nothing is left to gain; they must not choose a store.
    negligible = 1e-12 * through.max(axis=1) * paths.depth.max()
    for taken in range(int(replicas[0])):
        active = slice(0, int(np.count_nonzero(replicas > taken)))
        topics = rows[active]
        np.multiply(way[active], through[active], out=gain[active])
        best = gain[active].argmax(axis=1)
        gains = gain[topics, best] > negligible[active]
        yield topics[gains], best[gains]
        # What stops here no longer passes the nodes from here to the store it went to.
        path = paths.above[best]
        between = paths.depth[path] > (paths.depth[best] - way[topics, best])[:, None]
        through[topics[:, None], path] -= between * through[topics, best][:, None]
        # mode="clip": "raise" would copy through a buffer.
        np.take(paths.way, best, axis=0, out=reached[active], mode="clip")
        np.minimum(way[active], reached[active], out=way[active])
