"""How many stores, when nobody says; how many replicas a topic gets, and in which portions.

Weights w_t, degrees k_t, relative weights ξ_t.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.storage.problem import StorageInfeasibleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.placement.arrays import Floats, Ints

__all__ = [
    "minimum_degrees", "relative_weights", "store_count", "stores_needed", "topic_weights", "weighted_degrees",
    "wrr_rounds",
]  # fmt: skip

# Quotients of rates that should be whole are sometimes a rounding error above it; ⌈·⌉ must not see that.
_ROUNDING = 1e-9
_HUGE = 1e12
# How many numbers of stores are tried, from the least to all nodes, by equal factors.
_TRIED = 10


def topic_weights(demand: Floats) -> Floats:
    """w_t: the topic's share of all requests."""
    largest = demand.max() if demand.size else 0.0
    if not largest:
        return np.full(len(demand), 1 / max(len(demand), 1))
    requests = (demand / largest).sum(axis=1)  # divided first: the sum of huge rates would overflow
    return np.asarray(requests / requests.sum())


def minimum_degrees(weights: Floats, min_replicas: int) -> Ints:
    """k_t = ⌈w_t / w_t' · min_k⌉ with t' the topic of least weight (Section 6.1.1)."""
    return np.maximum(min_replicas, _ceil(_relative(weights) * min_replicas))


def weighted_degrees(
    weights: Floats, min_replicas: int, stores: int, capacity: float, sizes: Floats | None = None
) -> Ints:
    """Degrees by weight that fill the L·M places of M stores: at least `min_replicas` each, at most M.

    One factor scales all weights, up or down; what rounding leaves over goes to the topics with most requests per
    replica. When not even the minimum fits, that is refused.
    """
    size = np.ones(len(weights)) if sizes is None else sizes
    wanted, room = _relative(weights), stores * capacity * (1 + _ROUNDING)

    def scaled(factor: float) -> Ints:
        return np.maximum(min_replicas, _ceil(np.minimum(wanted * factor, stores)))

    if min_replicas > stores:
        raise StorageInfeasibleError(f"at least {min_replicas} replicas are asked for; there are only {stores} stores")
    if (needed := float(size @ scaled(0.0))) > room:
        raise StorageInfeasibleError(
            f"capacity too small: {min_replicas} replicas of each topic need {needed:g}, "
            f"{stores} stores of {capacity:g} have {stores * capacity:g}"
        )
    low, high = 0.0, float(stores)  # the least weight is 1: no topic wants more than all stores
    if size @ scaled(high) <= room:
        return scaled(high)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if size @ scaled(middle) <= room else (low, middle)
    return _fill(scaled(low), wanted, size, stores, room)


def _fill(degrees: Ints, wanted: Floats, size: Floats, stores: int, room: float) -> Ints:
    """One more replica at a time, while there is room, to the topic with most requests per replica."""
    left = room - float(size @ degrees)
    while True:
        takes = (degrees < stores) & (size <= left) & (wanted > 0)
        if not takes.any():
            return degrees
        topic = int(np.where(takes, wanted / degrees, -1.0).argmax())
        degrees[topic] += 1
        left -= float(size[topic])


def stores_needed(replicas: Ints, capacity: float) -> int:
    """The least M that holds topics of size 1: L·M ≥ Σ k_t and k_t ≤ M (Eq. 4)."""
    return max(math.ceil(int(replicas.sum()) / capacity), int(replicas.max()))


def store_count(least: int, nodes: int, traffic: Callable[[int], float]) -> int:
    """The number of stores beyond which one more saves clearly less than before; `traffic(M)` is what a plan costs."""
    counts = np.unique(np.geomspace(max(least, 1), nodes, _TRIED).round().astype(np.int64))
    costs = np.array([traffic(int(count)) for count in counts])
    return int(counts[_knee(counts, costs)])


def _knee(counts: Ints, costs: Floats) -> int:
    """Where a falling, convex curve is farthest below the straight line between its ends, both axes scaled to 0 … 1.

    The first point when the curve does not fall.
    """
    if len(counts) < 3 or costs[0] <= costs[-1]:
        return 0
    across = (counts - counts[0]) / (counts[-1] - counts[0])
    down = (costs - costs[-1]) / (costs[0] - costs[-1])
    return int(np.argmax(1 - across - down))


def relative_weights(weights: Floats) -> Ints:
    """ξ_t = ⌈demand / smallest demand⌉; a topic without requests counts like the least requested one."""
    return np.maximum(1, _ceil(_relative(weights)))


def wrr_rounds(relative: Ints, replicas: Ints) -> list[Ints]:
    """k_t^r per round: min{ξ_t, what is left}, until every topic has all its replicas (Section 5.5).

    A topic that is the last to want stores takes all the rest at once, as in the paper's third round.
    """
    rounds, left = [], replicas.copy()
    while left.any():
        portion = np.minimum(relative, left) if np.count_nonzero(left) > 1 else left
        rounds.append(portion)
        left = left - portion
    return rounds


def _relative(weights: Floats) -> Floats:
    """Weights over the least of them that is above 0, at most _HUGE: beyond it whole numbers are not exact."""
    asked = weights[weights > 0]
    if not len(asked):
        return np.ones(len(weights))
    with np.errstate(over="ignore"):
        return np.asarray(np.minimum(weights / asked.min(), _HUGE))


def _ceil(values: Floats) -> Ints:
    return np.ceil(values * (1 - _ROUNDING)).astype(np.int64)
