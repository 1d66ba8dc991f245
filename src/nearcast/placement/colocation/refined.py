"""Beyond the paper: brokers drained one by one, for LFS's number of brokers or fewer at near FFD's cost."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.colocation.exact import lower_bound
from nearcast.placement.colocation.feasibility import MAX_LOAD
from nearcast.placement.colocation.mixed import mixed
from nearcast.placement.colocation.planners import as_plan, check_k, fill_in_order, slowest_first

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.placement.colocation.feasibility import Feasibility, Plan

__all__ = ["refine", "refined"]

PAIRS = 250  # pairs of brokers that are looked at in all
PARTNERS = 32  # brokers with the most room that a broker is drained into
EXCHANGES = 128  # ways to divide the topics of two brokers that are asked about
MOST_TOPICS = 16  # on two brokers together: n topics can be divided in 2^n ways


def refined(possible: Feasibility, k: int) -> Plan:
    """The better of first fit and of mixing heavy with light topics, then brokers drained."""
    check_k(possible, k)
    starts = [fill_in_order(possible, slowest_first(possible), k), mixed(possible, k)]
    return as_plan(possible, _drained(possible, min(starts, key=len), k))


def refine(possible: Feasibility, k: int, start: Plan) -> Plan:
    """The same search from a given plan; never more brokers than it has."""
    order = np.argsort(start.broker, kind="stable")
    cuts = np.flatnonzero(np.diff(start.broker[order])) + 1
    return as_plan(possible, _drained(possible, [b.tolist() for b in np.split(order, cuts)], k))


def _drained(possible: Feasibility, brokers: list[list[int]], k: int) -> list[list[int]]:
    """Drain the least loaded broker into others until it is empty, then the next least loaded.

    An exchange makes the fuller of two brokers fuller, so the sum of squared loads grows and the search ends.
    """
    brokers = list(brokers)
    load = np.array([possible.load[b].sum() for b in brokers])
    least = lower_bound(possible, k)
    resisting = looked_at = 0
    while len(brokers) > least and looked_at < PAIRS and resisting < len(brokers):
        source = int(np.argsort(load, kind="stable")[resisting])
        drained = False
        for partner in np.argsort(load, kind="stable")[:PARTNERS].tolist():
            together = len(brokers[source]) + len(brokers[partner])
            if partner == source or load[partner] < load[source] or together > MOST_TOPICS:
                continue
            looked_at += 1
            found = _exchange(possible, brokers[source], brokers[partner], k)
            if found is None:
                continue
            drained = True
            brokers[source], brokers[partner] = found
            load[source], load[partner] = (possible.load[b].sum() for b in found)
            if not found[0]:
                break
        if not brokers[source]:
            del brokers[source]
            load = np.delete(load, source)
        resisting = 0 if drained else resisting + 1
    return brokers


def _exchange(
    possible: Feasibility, lighter: list[int], fuller: list[int], k: int
) -> tuple[list[int], list[int]] | None:
    """Divide the topics of two brokers anew so that the fuller one gets as full as it can; None if it is."""
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
def _divisions(topics: int) -> NDArray[np.int64]:
    """All ways to divide topics between two brokers, one per row; 1: the second one gets the topic."""
    return np.arange(2**topics)[:, None] >> np.arange(topics) & 1
