"""The paper's synthetic requests (Section 6): Zipf popularity p_t, Zipf locality l_t around a centre."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.storage.network import Network, from_edges

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["random_tree", "zipf", "zipf_demand"]


def random_tree(nodes: int, rng: np.random.Generator) -> Network:
    """A tree in which every node hangs off a random earlier one."""
    child = np.arange(1, nodes)
    return from_edges(nodes, child, rng.integers(0, child))


def zipf(count: int, exponent: float) -> NDArray[np.float64]:
    """Shares by rank, 1/rank^s, that sum to 1. A negative exponent turns the order round."""
    shares = np.arange(1, count + 1, dtype=float) ** -exponent
    return np.asarray(shares / shares.sum())


def zipf_demand(
    network: Network,
    topics: int,
    rng: np.random.Generator,
    *,
    popularity: float = 1.0,
    locality: float | None = None,
    rate: float = 25.0,
) -> NDArray[np.float64]:
    """r_i^t = rate · p_t requests/s at each asking node; all nodes ask unless a locality exponent is given.

    With one, ⌈l_t · N⌉ nodes ask for topic t, those closest to a random centre.
    """
    popularities = zipf(topics, popularity)
    demand = np.repeat(rate * popularities[:, None], network.nodes, axis=1)
    if locality is not None:
        for topic, share in enumerate(zipf(topics, locality)):
            centre = rng.integers(network.nodes)
            farther = np.argsort(network.distance[centre], kind="stable")[int(np.ceil(share * network.nodes)) :]
            demand[topic, farther] = 0.0
    return demand
