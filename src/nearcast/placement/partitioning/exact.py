"""The best partitioning of a small instance, to measure the others against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array, eye_array, hstack, kron

from nearcast.errors import NearcastError
from nearcast.placement.partitioning.planners import current_capacity, described
from nearcast.placement.partitioning.problem import moved
from nearcast.placement.partitioning.refined import late_topics

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats
    from nearcast.placement.partitioning.planners import Partition
    from nearcast.placement.partitioning.problem import PartitionSites, PartitionTopics

__all__ = ["exact"]

SECONDS_PER_GOAL = 60.0


def exact(topics: PartitionTopics, sites: PartitionSites, latencies: Floats, late: Floats | None = None) -> Partition:
    """The least rate above the sites' limits, then the least that is late, then moves, then latency.

    `latencies` is the latency of every topic at every site, `late` what is to be kept low (by default 1 where a
    topic is above its bound). Each of the four goals is one integer programme (HiGHS) that holds what those before it
    reached. Meant for up to some thousand topics × sites.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and the others do not need it

    count, width = len(topics), len(sites)
    placed, everywhere = count * width, np.ones((1, width))
    # Columns: topic t at site b (row by row), then the rate by which each site is above its limit.
    once = hstack([kron(eye_array(count), everywhere), csr_array((count, width))])
    capacity = current_capacity(topics, sites)
    scale = max(float(topics.rate.max()), float(capacity.max())) or 1.0
    fits = hstack([kron(topics.rate[None, :] / scale, eye_array(width)), -eye_array(width)])
    constraints = [LinearConstraint(once, 1, 1), LinearConstraint(fits, -np.inf, capacity / scale)]
    late = late_topics(topics, latencies) if late is None else late
    goals = (
        np.r_[np.zeros(placed), np.ones(width)],
        np.r_[late.ravel(), np.zeros(width)],
        np.r_[moved(topics.site, width).ravel(), np.zeros(width)],
        np.r_[latencies.ravel(), np.zeros(width)],
    )
    for goal in goals:
        best = milp(
            goal,
            constraints=constraints,
            integrality=np.r_[np.ones(placed), np.zeros(width)],
            bounds=Bounds(0, np.r_[np.ones(placed), np.full(width, np.inf)]),
            options={"mip_rel_gap": 0, "time_limit": SECONDS_PER_GOAL},
        )
        if best.status != 0:
            raise NearcastError(f"the solver did not reach the optimum: {best.message}")
        constraints.append(LinearConstraint(goal[None, :], -np.inf, best.fun + 1e-6 * max(1.0, abs(best.fun))))
    site = best.x[:placed].reshape(count, width).argmax(axis=1)
    return described(topics, sites, site, latencies[np.arange(count), site])
