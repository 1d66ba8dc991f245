"""Beyond the paper: brokers dissolved one by one, for LFS's number of brokers or fewer at near FFD's cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.colocation.exact import lower_bound
from nearcast.placement.colocation.feasibility import MAX_LOAD
from nearcast.placement.colocation.planners import as_plan, check_k, fill_in_order, slowest_first

if TYPE_CHECKING:
    from nearcast.placement.colocation.feasibility import Feasibility, Plan

__all__ = ["refine", "refined"]

# How many brokers in a row may resist before the search ends, how many places are tried for a topic that needs
# another to leave, and how many topics may be on the way at once.
PATIENCE = 20
PLACES = 24
STEPS = 40


def refined(possible: Feasibility, k: int) -> Plan:
    """First fit in two orders, slowest and heaviest first; the better of them with brokers dissolved."""
    check_k(possible, k)
    heaviest_first = np.argsort(-possible.load, kind="stable")
    starts = [fill_in_order(possible, order, k) for order in (slowest_first(possible), heaviest_first)]
    return as_plan(possible, _dissolve_brokers(possible, min(starts, key=len), k))


def refine(possible: Feasibility, k: int, start: Plan) -> Plan:
    """The same search from a given plan; never more brokers than it has."""
    order = np.argsort(start.broker, kind="stable")
    cuts = np.flatnonzero(np.diff(start.broker[order])) + 1
    return as_plan(possible, _dissolve_brokers(possible, [b.tolist() for b in np.split(order, cuts)], k))


def _dissolve_brokers(possible: Feasibility, brokers: list[list[int]], k: int) -> list[list[int]]:
    """Empty the least loaded brokers into the others while that works."""
    least = lower_bound(possible, k)
    resisting: set[int] = set()
    while len(brokers) > least:
        load = [possible.load[b].sum() for b in brokers]
        tried = [i for i in np.argsort(load, kind="stable").tolist() if id(brokers[i]) not in resisting]
        if not tried or len(resisting) >= PATIENCE:
            break
        source = brokers[tried[0]]
        rest = [b for b in brokers if b is not source]
        spread = _spread(possible, source, rest, k)
        if spread is None:
            resisting.add(id(source))
        else:
            brokers = spread
            resisting.clear()
    return brokers


def _spread(
    possible: Feasibility, topics: list[int], brokers: list[list[int]], k: int
) -> list[list[int]] | None:
    """Place the topics on the brokers. A topic that fits nowhere may take the place of a lighter one,
    which then looks for a place itself; loads only fall on the way, so it ends."""
    brokers = list(brokers)
    load = np.array([possible.load[b].sum() for b in brokers])
    waiting = sorted(topics, key=lambda t: float(possible.load[t]))
    for _ in range(STEPS):
        if not waiting:
            return brokers
        topic = waiting.pop()
        place = _place(possible, topic, brokers, load, k)
        if place is None:
            return None
        target, leaving = place
        stay = [t for t in brokers[target] if t != leaving]
        brokers[target] = [*stay, topic]
        load[target] = possible.load[brokers[target]].sum()
        if leaving is not None:
            waiting = sorted([*waiting, leaving], key=lambda t: float(possible.load[t]))
    return None


def _place(
    possible: Feasibility, topic: int, brokers: list[list[int]], load: np.ndarray, k: int
) -> tuple[int, int | None] | None:
    """The fullest broker that takes the topic as it is; else the place of the lightest topic it can replace."""
    own = possible.load[topic]
    for i in np.argsort(-load, kind="stable")[: 4 * PLACES]:
        if load[i] + own <= MAX_LOAD and len(brokers[i]) < k:
            if possible.sets(np.array([[*brokers[i], topic]]))[0]:
                return int(i), None
    swaps = []
    for i, broker in enumerate(brokers):
        for member in broker:
            after = load[i] - possible.load[member] + own
            if possible.load[member] < own and after <= MAX_LOAD:
                swaps.append((-after, i, member))
    for _, i, member in sorted(swaps)[:PLACES]:
        if possible.sets(np.array([[*(t for t in brokers[i] if t != member), topic]]))[0]:
            return i, member
    return None
