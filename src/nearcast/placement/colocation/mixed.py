"""Heavy and light topics mixed on each worker: sets proposed by load alone, decided by the model."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.colocation.problem import MAX_LOAD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearcast.placement.colocation.problem import Feasibility

__all__ = ["mixed"]

TARGETS = [MAX_LOAD - step / 100 for step in range(50)]
ASKED_AT_ONCE = 10


def mixed(possible: Feasibility, k: int) -> list[list[int]]:
    """Sets of k topics while there are any, then of k - 1, …, as LFS makes them, at the cost of FFD.

    A set starts with the heaviest topic that could be in one of its size and takes, slot by slot, the
    heaviest that leaves enough load for the lightest in the slots after it. The total load aimed at falls
    until the model agrees. That is LFS with a search in one dimension: a few predictions per worker.
    """
    order = np.argsort(possible.load, kind="stable")
    waiting: list[int] = order.tolist()
    loads: list[float] = possible.load[order].tolist()
    workers = []
    for size in range(k, 1, -1):
        root = len(waiting) - 1
        while root >= size - 1:
            lightest = sum(loads[: size - 1])
            root = min(root, bisect_right(loads, MAX_LOAD - lightest) - 1)
            places = _feasible_places(possible, waiting, loads, root, size) if root >= size - 1 else None
            if places is not None:
                workers.append([waiting[place] for place in places])
                for place in places:  # from the heaviest down: the places before it stay what they are
                    del waiting[place], loads[place]
            root -= 1 if places is None else size
    return workers + [[topic] for topic in waiting]


def _feasible_places(
    possible: Feasibility, waiting: list[int], loads: list[float], root: int, size: int
) -> tuple[int, ...] | None:
    proposals = list(dict.fromkeys(_proposals(loads, root, size)))
    for start in range(0, len(proposals), ASKED_AT_ONCE):
        asked = proposals[start : start + ASKED_AT_ONCE]
        feasible = possible.sets(np.array([[waiting[place] for place in places] for places in asked]))
        if feasible.any():
            return asked[int(np.argmax(feasible))]
    return None


def _proposals(loads: list[float], root: int, size: int) -> Iterator[tuple[int, ...]]:
    """Positions in the ascending loads, heaviest first, for one total load after the other."""
    lightest = [0.0, *accumulate(loads[: size - 1])]
    for target in TARGETS:
        places = [root]
        total = loads[root]
        for missing in range(size - 2, -1, -1):
            place = min(bisect_right(loads, target - total - lightest[missing]), places[-1]) - 1
            if place < missing:
                return  # and a lower load is no easier
            places.append(place)
            total += loads[place]
        yield tuple(places)
