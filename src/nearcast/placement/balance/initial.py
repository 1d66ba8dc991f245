"""Stage 1: a broker for who has just joined and has no subscriptions yet (Section 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial import KDTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["nearest", "random", "round_robin"]


def nearest(subscribers: NDArray[np.float64], brokers: NDArray[np.float64]) -> NDArray[np.int64]:
    """NR: the closest broker, for positions in one row each (x, y)."""
    return np.asarray(KDTree(brokers).query(subscribers)[1], dtype=np.int64)


def round_robin(subscribers: int, brokers: int) -> NDArray[np.int64]:
    """RR: the same number of subscribers at every broker."""
    return np.arange(subscribers) % brokers


def random(subscribers: int, brokers: int, seed: int) -> NDArray[np.int64]:
    """RND: any broker."""
    return np.random.default_rng(seed).integers(brokers, size=subscribers)
