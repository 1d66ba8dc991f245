"""How many replicas a topic gets, and in which portions: weights w_t, degrees k_t, relative weights ξ_t."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.storage.problem import StorageInfeasibleError

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["minimum_degrees", "relative_weights", "stores_needed", "topic_weights", "weighted_degrees", "wrr_rounds"]

# Quotients of rates that should be whole are sometimes a rounding error above it; ⌈·⌉ must not see that.
_ROUNDING = 1e-9


def topic_weights(demand: Floats) -> Floats:
    """w_t: the topic's share of all requests."""
    total = demand.sum()
    return np.asarray(demand.sum(axis=1) / total) if total else np.full(len(demand), 1 / len(demand))


def minimum_degrees(weights: Floats, min_replicas: int) -> Ints:
    """k_t = ⌈w_t / w_t' · min_k⌉ with t' the topic of least weight (Section 6.1.1)."""
    return np.maximum(min_replicas, _ceil(_relative(weights) * min_replicas))


def weighted_degrees(
    weights: Floats, min_replicas: int, stores: int, capacity: float, sizes: Floats | None = None
) -> Ints:
    """The same within M stores of capacity L: at most M each, scaled down by weight until all fit.

    No topic falls below `min_replicas`; when even those do not fit, that is refused.
    """
    size = np.ones(len(weights)) if sizes is None else sizes
    wanted, room = _relative(weights) * min_replicas, stores * capacity

    def scaled(factor: float) -> Ints:
        return np.clip(_ceil(wanted * factor), min_replicas, stores)

    if min_replicas > stores:
        raise StorageInfeasibleError(f"at least {min_replicas} replicas are asked for; there are only {stores} stores")
    if (needed := float(size @ scaled(0.0))) > room:
        raise StorageInfeasibleError(
            f"capacity too small: {min_replicas} replicas of each topic need {needed:g}, "
            f"{stores} stores of {capacity:g} have {room:g}"
        )
    low, high = 0.0, 1.0
    if size @ scaled(high) <= room:
        return scaled(high)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if size @ scaled(middle) <= room else (low, middle)
    return scaled(low)


def stores_needed(replicas: Ints, capacity: float) -> int:
    """The least M that holds topics of size 1: L·M ≥ Σ k_t and k_t ≤ M (Eq. 4)."""
    return max(math.ceil(int(replicas.sum()) / capacity), int(replicas.max()))


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
    asked = weights[weights > 0]
    return np.asarray(weights / asked.min()) if len(asked) else np.ones(len(weights))


def _ceil(values: Floats) -> Ints:
    return np.ceil(values * (1 - _ROUNDING)).astype(np.int64)
