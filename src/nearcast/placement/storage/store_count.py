"""How many stores, when nobody says: the knee of the traffic against their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.placement.arrays import Floats, Ints

__all__ = ["knee", "store_count"]

# How many numbers of stores are tried, from the least to all nodes, by equal factors.
_TRIED = 10


def store_count(least: int, nodes: int, traffic: Callable[[int], float]) -> int:
    """The number of stores beyond which one more saves clearly less than before; `traffic(M)` is what a plan costs."""
    counts = np.unique(np.geomspace(max(least, 1), nodes, _TRIED).round().astype(np.int64))
    costs = np.array([traffic(int(count)) for count in counts])
    return int(counts[knee(counts, costs)])


def knee(counts: Ints, costs: Floats) -> int:
    """Where a falling, convex curve is farthest below the straight line between its ends, both axes scaled to 0 … 1.

    The first point when the curve does not fall.
    """
    if len(counts) < 3 or costs[0] <= costs[-1]:
        return 0
    across = (counts - counts[0]) / (counts[-1] - counts[0])
    down = (costs - costs[-1]) / (costs[0] - costs[-1])
    return int(np.argmax(1 - across - down))
