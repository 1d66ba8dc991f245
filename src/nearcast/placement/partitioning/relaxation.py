"""Where topics would go if they could be divided: a linear programme whose plans are nearly whole.

The late topics (or pairs) and, a weight below, the moves are minimised within the sites' limits. At a vertex of that
programme at most as many topics are divided as there are sites, so rounding changes little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array, vstack

from nearcast.placement.partitioning.problem import NOWHERE

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["nearest_of_least", "relaxed", "solved"]

_WHOLE = 1 - 1e-6
_NODES = 400  # of the search tree; a number and not a time, so that the same problem has the same plan


def nearest_of_least(cost: Floats, latencies: Floats) -> Ints:
    """Each topic's cheapest site, of equals the nearest."""
    return np.asarray(np.where(cost <= cost.min(axis=1, keepdims=True), latencies, np.inf).argmin(axis=1))


def relaxed(
    late: Floats, home: Ints, rate: Floats, capacity: Floats, latencies: Floats, moves_at_most: int | None
) -> Ints | None:
    """The linear programme, rounded; None where even divided topics do not fit. The plan may overload sites."""
    share = _programme(late, home, rate, capacity, moves_at_most, whole=False)
    if share is None:
        return None
    site = np.where(share.max(axis=1) >= _WHOLE, share.argmax(axis=1), NOWHERE)
    whole = site != NOWHERE
    load = np.bincount(site[whole], rate[whole], len(capacity))
    divided = np.flatnonzero(~whole)
    for topic in divided[np.argsort(-rate[divided], kind="stable")].tolist():
        fits = load + rate[topic] <= capacity
        order = np.lexsort((latencies[topic], -share[topic], late[topic], ~fits))
        site[topic] = order[0]
        load[order[0]] += rate[topic]
    return site


def solved(late: Floats, home: Ints, rate: Floats, capacity: Floats, moves_at_most: int | None) -> Ints | None:
    """The same with whole topics, as far as a limited search gets; None where it finds nothing."""
    share = _programme(late, home, rate, capacity, moves_at_most, whole=True)
    return None if share is None else np.asarray(share.argmax(axis=1))


def _programme(
    late: Floats, home: Ints, rate: Floats, capacity: Floats, moves_at_most: int | None, *, whole: bool
) -> Floats | None:
    """Shares of topics at sites."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and most plans do not need it

    topics, sites = late.shape
    moved = ((np.arange(sites) != home[:, None]) & (home != NOWHERE)[:, None]).astype(float)
    column = np.arange(topics * sites)
    topic, site = column // sites, column % sites
    scale = max(float(rate.max(initial=0.0)), float(capacity.max(initial=0.0))) or 1.0
    once = csr_array((np.ones(len(column)), (topic, column)), shape=(topics, len(column)))
    fits = csr_array((rate[topic] / scale, (site, column)), shape=(sites, len(column)))
    rows, low, high = [once, fits], [np.ones(topics), np.full(sites, -np.inf)], [np.ones(topics), capacity / scale]
    if moves_at_most is not None:
        rows.append(csr_array(moved.reshape(1, -1)))
        low.append(np.zeros(1))
        high.append(np.array([float(moves_at_most)]))
    answer = milp(
        ((topics + 1) * late + moved).ravel(),
        constraints=LinearConstraint(vstack(rows), np.concatenate(low), np.concatenate(high)),
        integrality=np.full(len(column), int(whole)),
        bounds=Bounds(0, 1),
        options={"node_limit": _NODES, "mip_rel_gap": 0.0} if whole else {},
    )
    return None if answer.x is None else np.asarray(answer.x).reshape(topics, sites)
