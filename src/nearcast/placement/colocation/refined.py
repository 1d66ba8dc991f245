"""Beyond the paper: workers drained one by one, for LFS's number of workers or fewer at near FFD's cost."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.colocation.exact import lower_bound
from nearcast.placement.colocation.mixed import mixed
from nearcast.placement.colocation.planners import as_plan, check_k, fill_in_order, slowest_first
from nearcast.placement.colocation.problem import MAX_LOAD

if TYPE_CHECKING:
    from nearcast.placement.arrays import Ints
    from nearcast.placement.colocation.problem import ColocationPlan, Feasibility

__all__ = ["refine", "refined"]

PAIRS = 250  # pairs of workers that are looked at in all
PARTNERS = 32  # workers with the most room that a worker is drained into
EXCHANGES = 128  # ways to divide the topics of two workers that are asked about
MOST_TOPICS = 16  # on two workers together: n topics can be divided in 2^n ways


def refined(possible: Feasibility, k: int) -> ColocationPlan:
    """The better of first fit and of mixing heavy with light topics, then workers drained."""
    check_k(possible, k)
    starts = [fill_in_order(possible, slowest_first(possible), k), mixed(possible, k)]
    return as_plan(possible, _drained(possible, min(starts, key=len), k))


def refine(possible: Feasibility, k: int, start: ColocationPlan) -> ColocationPlan:
    """The same search from a given plan; never more workers than it has."""
    order = np.argsort(start.worker, kind="stable")
    cuts = np.flatnonzero(np.diff(start.worker[order])) + 1
    return as_plan(possible, _drained(possible, [b.tolist() for b in np.split(order, cuts)], k))


def _drained(possible: Feasibility, workers: list[list[int]], k: int) -> list[list[int]]:
    """Drain the least loaded worker into others until it is empty, then the next least loaded.

    An exchange makes the fuller of two workers fuller, so the sum of squared loads grows and the search ends.
    """
    workers = list(workers)
    load = np.array([possible.load[b].sum() for b in workers])
    least = lower_bound(possible, k)
    resisting = looked_at = 0
    while len(workers) > least and looked_at < PAIRS and resisting < len(workers):
        source = int(np.argsort(load, kind="stable")[resisting])
        drained = False
        for partner in np.argsort(load, kind="stable")[:PARTNERS].tolist():
            together = len(workers[source]) + len(workers[partner])
            if partner == source or load[partner] < load[source] or together > MOST_TOPICS:
                continue
            looked_at += 1
            found = _exchange(possible, workers[source], workers[partner], k)
            if found is None:
                continue
            drained = True
            workers[source], workers[partner] = found
            load[source], load[partner] = (possible.load[b].sum() for b in found)
            if not found[0]:
                break
        if not workers[source]:
            del workers[source]
            load = np.delete(load, source)
        resisting = 0 if drained else resisting + 1
    return workers


def _exchange(
    possible: Feasibility, lighter: list[int], fuller: list[int], k: int
) -> tuple[list[int], list[int]] | None:
    """Redistribute the topics of two workers so that the fuller one gets as full as it can; None if it is already."""
    topics = np.array(lighter + fuller)
    given = _divisions(len(topics))
    load, size = given @ possible.load[topics], given.sum(axis=1)
    fits = (load > possible.load[fuller].sum() + 1e-9) & (load <= MAX_LOAD) & (size <= k) & (len(topics) - size <= k)
    ways = np.flatnonzero(fits)
    ways = ways[np.argsort(-load[ways], kind="stable")][:EXCHANGES]
    feasible = np.zeros(len(ways), dtype=bool)
    for count in np.unique(size[ways]):
        same = np.flatnonzero(size[ways] == count)
        feasible[same] = possible.may_be(topics[np.nonzero(given[ways[same]])[1].reshape(-1, count)])
    for way in ways[feasible]:
        taken = given[way].astype(bool)
        left, right = topics[~taken], topics[taken]
        if possible.sets(right[None, :])[0] and possible.sets(left[None, :])[0]:
            return left.tolist(), right.tolist()
    return None


@cache
def _divisions(topics: int) -> Ints:
    """All ways to divide topics between two workers, one per row; 1: the second one gets the topic."""
    return np.arange(2**topics)[:, None] >> np.arange(topics) & 1
