"""The paper's formulas written out one by one: what the vectorised planners are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from nearcast.placement.storage import StorageProblem, from_edges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.placement.storage import Network


def path(network: Network, node: int, origin: int) -> list[int]:
    """The nodes a request passes from `node` to `origin`, both included."""
    nodes = [node]
    while nodes[-1] != origin:
        nodes.append(int(network.next_hop[origin, nodes[-1]]))
    return nodes


def greedy(network: Network, rates: NDArray[np.float64], replicas: int, origin: int) -> set[int]:
    """Section 5.1 for one topic: the Gain of every node, computed request by request, round after round."""
    chosen: set[int] = set()
    for _ in range(replicas):
        gains = []
        for candidate in range(network.nodes):
            gain = 0.0
            for node, rate in enumerate(rates):
                way = path(network, node, origin)
                if candidate in way:
                    stop = next(n for n in way if n in chosen or n == origin)
                    if way.index(candidate) < way.index(stop):
                        gain += rate * network.distance[candidate, stop]
            gains.append(gain)
        downwards = [(origin - step) % network.nodes for step in range(network.nodes)]  # the order of equals
        best = max(downwards, key=gains.__getitem__)
        if gains[best] > 0:
            chosen.add(best)
    return chosen


def traffic(problem: StorageProblem, placed: NDArray[np.bool_]) -> float:
    """Eq. 1-3, term by term."""
    total = 0.0
    for topic, rates in enumerate(problem.demand):
        for node, rate in enumerate(rates):
            total += rate * min(problem.network.distance[node, n] for n in np.flatnonzero(placed[topic]))
    return total


@st.composite
def networks(draw: st.DrawFn, *, costs: bool = False) -> Network:
    """Trees, some with extra links; hops, or whole-number costs."""
    nodes = draw(st.integers(2, 8))
    links = {(draw(st.integers(0, child - 1)), child) for child in range(1, nodes)}
    for _ in range(draw(st.integers(0, 3))):
        a, b = sorted(draw(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))))
        links |= {(a, b)} if a < b else set()
    ends = np.array(sorted(links))
    cost = np.array([draw(st.integers(1, 5)) for _ in ends], dtype=float) if costs else None
    return from_edges(nodes, ends[:, 0], ends[:, 1], cost)


@st.composite
def problems(draw: st.DrawFn) -> StorageProblem:
    """Small instances; some with topics of different sizes, some with no room to spare."""
    network = draw(networks())
    topics = draw(st.integers(1, 4))
    whole = st.integers(0, 9)
    demand = np.array([[draw(whole) for _ in range(network.nodes)] for _ in range(topics)], dtype=float)
    stores = draw(st.integers(1, network.nodes))
    replicas = np.array([draw(st.integers(1, stores)) for _ in range(topics)])
    if draw(st.booleans()):
        capacity = float(-(-int(replicas.sum()) // stores) + draw(st.integers(0, 1)))
        return StorageProblem(network, demand, stores, capacity, replicas)
    sizes = np.array([draw(st.integers(1, 3)) for _ in range(topics)], dtype=float)
    # One largest topic more than the mean: the largest-first packing always fits that.
    capacity = float(np.ceil(sizes @ replicas / stores) + 2 * sizes.max())
    return StorageProblem(network, demand, stores, capacity, replicas, sizes)
