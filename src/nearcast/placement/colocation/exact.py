"""The fewest workers there can be, for small collections: a bound, and the optimum by set covering."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError, NearcastError
from nearcast.placement.colocation.planners import as_plan, check_k, slowest_first
from nearcast.placement.colocation.problem import MAX_LOAD
from nearcast.placement.colocation.search import feasible_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearcast.placement.arrays import Bools, Ints
    from nearcast.placement.colocation.problem import ColocationPlan, Feasibility

__all__ = ["exact", "lower_bound", "maximal_sets"]

MOST_TOPICS = 60  # sets are bits of one integer
MOST_SETS = 300_000


def lower_bound(possible: Feasibility, k: int) -> int:
    """No plan has fewer workers: each takes at most k topics and at most a load of 1."""
    by_load = np.ceil(possible.load.sum() / MAX_LOAD - 1e-9)
    return max(-(-len(possible.topics) // k), int(by_load))


def exact(possible: Feasibility, k: int) -> ColocationPlan:
    """k-TCP solved (Equations 1–4), as set covering: choose the fewest feasible sets that cover all topics.

    Only sets that no feasible set contains are needed: a topic covered twice is left out of the second, and
    by Property 1(b) the second stays feasible. The number of sets grows as n^k; too many are refused.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    check_k(possible, k)
    sets = [row for level in maximal_sets(possible, k) for row in level.tolist()]
    sizes = [len(row) for row in sets]
    entries = (np.concatenate(sets), np.repeat(np.arange(len(sets)), sizes))
    covers = csr_array((np.ones(sum(sizes)), entries), shape=(len(possible.topics), len(sets)))
    count = np.ones((1, len(sets)))
    solved = milp(
        c=count[0],
        constraints=[
            LinearConstraint(covers, lb=1),  # Equation (1), with ≥
            LinearConstraint(count, lb=lower_bound(possible, k)),
        ],
        integrality=count[0],
        bounds=Bounds(0, 1),
    )
    if solved.status != 0:  # cannot be infeasible: each topic may be alone
        raise NearcastError(f"the exact planner gave up: {solved.message}")
    chosen = [row for row, value in zip(sets, solved.x, strict=True) if value > 0.5]
    placed: set[int] = set()
    workers = []
    for row in chosen:
        workers.append([topic for topic in row if topic not in placed])
        placed.update(row)
    return as_plan(possible, workers)


def maximal_sets(possible: Feasibility, k: int) -> Iterator[Ints]:
    """Feasible sets of at most k topics that are in no larger one, a level per size.

    A set is feasible when its own prediction is and all sets with one topic less are (Property 1(b)).
    """
    n = len(possible.topics)
    if n > MOST_TOPICS:
        raise InputError(f"{n} topics are too many for the exact planner; it takes at most {MOST_TOPICS}")
    order = slowest_first(possible)
    pairs = feasible_pairs(possible, order)
    bit = np.left_shift(np.int64(1), np.arange(n))
    level = np.arange(n)[:, None]
    for _ in range(1, k):
        larger = _extended(possible, order, pairs, level, bit)
        without_one = bit[larger].sum(axis=1)[:, None] - bit[larger]
        yield order[level[~np.isin(bit[level].sum(axis=1), without_one)]]
        level = larger
    yield order[level]


def _extended(possible: Feasibility, order: Ints, pairs: Bools, level: Ints, bit: Ints) -> Ints:
    """All feasible sets of one topic more, given all feasible sets of a size."""
    mates = pairs[level].all(axis=1) & (np.arange(len(order)) > level[:, -1:])
    if mates.sum() > MOST_SETS:
        raise InputError(f"more than {MOST_SETS} sets of topics fit together: too many for the exact planner")
    parent, newest = np.nonzero(mates)
    larger = np.concatenate([level[parent], newest[:, None]], axis=1)
    without_one = bit[larger].sum(axis=1)[:, None] - bit[larger]
    larger = larger[np.isin(without_one, bit[level].sum(axis=1)).all(axis=1)]
    return larger[possible.may_be(order[larger])] if len(larger) else larger
