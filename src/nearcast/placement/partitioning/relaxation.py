"""Where topics would go if they could be divided: a linear programme whose plans are nearly whole.

The late topics (or pairs) and, a weight below, the moves are minimised within the sites' limits, or where these are too
low with the least rate above them. At a vertex of that programme at most as many topics are divided as there are sites,
so rounding changes little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array, eye_array, hstack, vstack

from nearcast.placement.partitioning.problem import NOWHERE, moved

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

    from nearcast.placement.arrays import Floats, Ints

__all__ = ["nearest_of_least", "relaxed", "solved"]

_WHOLE = 1 - 1e-6
_INFEASIBLE = 2  # of HiGHS
_MOST_ABOVE = 500  # topics × sites of the integer programme where the limits are too low: that search is slow
_NODES = 400  # of the search tree; a number and not a time, so that the same problem has the same plan


def nearest_of_least(cost: Floats, latencies: Floats) -> Ints:
    """Each topic's cheapest site, of equals the nearest."""
    return np.asarray(np.where(cost <= cost.min(axis=1, keepdims=True), latencies, np.inf).argmin(axis=1))


def relaxed(
    late: Floats, home: Ints, rate: Floats, capacity: Floats, latencies: Floats, moves_at_most: int | None
) -> Ints | None:
    """The linear programme, rounded; None where the solver fails. The plan may overload sites."""
    share = _programme(late, home, rate, capacity, moves_at_most, whole=False)
    if share is None:
        return None
    site = np.where(share.max(axis=1) >= _WHOLE, share.argmax(axis=1), NOWHERE)
    whole = site != NOWHERE
    load = np.bincount(site[whole], rate[whole], len(capacity))
    divided = np.flatnonzero(~whole)
    away = moved(home, len(capacity))
    left = (len(home) if moves_at_most is None else moves_at_most) - int(away[whole, site[whole]].sum())
    for topic in divided[np.argsort(-rate[divided], kind="stable")].tolist():
        fits = load + rate[topic] <= capacity
        order = np.lexsort((latencies[topic], -share[topic], late[topic], ~fits, away[topic] > max(left, 0)))
        site[topic] = order[0]
        left -= int(away[topic, order[0]])
        load[order[0]] += rate[topic]
    return site


def solved(late: Floats, home: Ints, rate: Floats, capacity: Floats, moves_at_most: int | None) -> Ints | None:
    """The same with whole topics, as far as a limited search gets; None where it finds nothing."""
    share = _programme(late, home, rate, capacity, moves_at_most, whole=True)
    return None if share is None else np.asarray(share.argmax(axis=1))


def _programme(
    late: Floats, home: Ints, rate: Floats, capacity: Floats, moves_at_most: int | None, *, whole: bool
) -> Floats | None:
    """Shares of topics at sites. Where the limits are too low, first the least rate above them is found."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and most plans do not need it

    topics, sites = late.shape
    placed, away = topics * sites, moved(home, sites)
    column = np.arange(placed)
    topic, site = column // sites, column % sites
    scale = max(float(rate.max(initial=0.0)), float(capacity.max(initial=0.0))) or 1.0
    # After the shares, the rate by which each site is above its limit.
    once = csr_array((np.ones(placed), (topic, column)), shape=(topics, placed + sites))
    rates = csr_array((rate[topic] / scale, (site, column)), shape=(sites, placed))
    rows, low, high = (
        [once, hstack([rates, -eye_array(sites)])],
        [np.ones(topics), np.full(sites, -np.inf)],
        [np.ones(topics), capacity / scale],
    )
    if moves_at_most is not None:
        rows.append(csr_array(np.r_[away.ravel(), np.zeros(sites)][None, :]))
        low.append(np.zeros(1))
        high.append(np.array([float(moves_at_most)]))
    limits = LinearConstraint(vstack(rows), np.concatenate(low), np.concatenate(high))
    above = np.r_[np.zeros(placed), np.ones(sites)]

    def solve(goal: Floats, above_at_most: float) -> OptimizeResult:
        return milp(
            goal,
            constraints=[limits, LinearConstraint(above[None, :], -np.inf, above_at_most)],
            integrality=np.r_[np.full(placed, int(whole)), np.zeros(sites)],
            bounds=Bounds(0, np.r_[np.ones(placed), np.full(sites, above_at_most)]),
            options={"node_limit": _NODES, "mip_rel_gap": 0.0} if whole else {},
        )

    cost = np.r_[((topics + 1) * late + away).ravel(), np.zeros(sites)]
    answer = solve(cost, 0.0)
    if answer.status == _INFEASIBLE and whole and placed > _MOST_ABOVE:
        return None
    if answer.status == _INFEASIBLE:
        least = solve(above, np.inf)
        answer = least if least.x is None else solve(cost, float(least.fun) + 1e-9)
    return None if answer.x is None else np.asarray(answer.x[:placed]).reshape(topics, sites)
