"""Better than Algorithm 1 when sites are full, and with fewer moves when they are not.

Algorithm 1 places each topic once, moves topics that are late everywhere, and gives up when the sites it needs are
full. This continues from its plan and from a rounded linear programme, and only accepts changes that lower, in this
order, the rate above the limits, what is late (topics, or producer-consumer pairs), and the number of moves. It never
returns worse than its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.partitioning.planners import centroid, current_capacity, described
from nearcast.placement.partitioning.problem import NOWHERE, moved
from nearcast.placement.partitioning.relaxation import nearest_of_least, relaxed, solved
from nearcast.placement.partitioning.search import PartitionSearch

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats
    from nearcast.placement.partitioning.planners import Partition
    from nearcast.placement.partitioning.problem import PartitionSites, PartitionTopics

__all__ = ["late_topics", "refined"]

MOST_RELAXED = 200_000  # topics × sites of the linear programme; beyond it the search continues from Algorithm 1 only
MOST_SOLVED = 2_000  # topics × sites of the integer programme


def late_topics(topics: PartitionTopics, latencies: Floats) -> Floats:
    """Topics × sites: 1 where a topic would be above its bound; where it is now, what was measured counts."""
    late = (latencies > topics.bound[:, None]).astype(float)
    placed = np.flatnonzero(topics.site != NOWHERE)
    late[placed, topics.site[placed]] = topics.latency[placed] > topics.bound[placed]
    return late


def refined(
    topics: PartitionTopics,
    sites: PartitionSites,
    latencies: Floats,
    start: Partition,
    late: Floats | None = None,
    moves_at_most: int | None = None,
) -> Partition:
    """A plan with no more overload, lateness and moves than `start`, usually with less.

    `latencies` is the latency of every topic at every site. `late` is what is to be kept low, of every topic at every
    site: by default 1 where the topic is above its bound; `late_pairs` counts pairs. With `moves_at_most` a start with
    more moves is not gone on from. With as many moves no plan of `centroid` is better, nor is that without a cap.
    """
    late = late_topics(topics, latencies) if late is None else late
    capacity = current_capacity(topics, sites)

    def searched(site: np.ndarray) -> PartitionSearch:
        search = PartitionSearch(topics.site, topics.rate, capacity, latencies, late, site, moves_at_most)
        search.improve()
        return search

    most = len(topics) if moves_at_most is None else moves_at_most
    away = moved(topics.site, len(sites))
    anywhere = nearest_of_least((len(topics) + 1) * late + away, latencies)  # as if sites had no limits
    fewest = int(np.count_nonzero(away[np.arange(len(topics)), anywhere]))
    stay = np.where(topics.site == NOWHERE, start.site, topics.site)
    starts = [start.site if start.moves <= most else stay, anywhere if fewest <= most else stay]
    by_centroid = centroid(topics, sites)
    if by_centroid.moves <= most:
        starts.append(by_centroid.site)
    if moves_at_most is not None:
        free = refined(topics, sites, latencies, start, late)
        if free.moves <= most:
            starts.append(free.site)
    best = min((searched(site) for site in starts), key=PartitionSearch.merit)
    if best.merit() > (0, 0.0, 0, float(late.min(axis=1).sum()), fewest) and late.size <= MOST_RELAXED:
        divided = relaxed(late, topics.site, topics.rate, capacity, latencies, moves_at_most)
        if divided is not None:
            best = min(best, searched(divided), key=PartitionSearch.merit)
            whole = (
                solved(late, topics.site, topics.rate, capacity, moves_at_most) if late.size <= MOST_SOLVED else None
            )
            best = best if whole is None else min(best, searched(whole), key=PartitionSearch.merit)
    at_site = latencies[np.arange(len(topics)), best.site]
    expected = np.where(best.site == NOWHERE, np.inf, np.where(best.site == topics.site, topics.latency, at_site))
    return described(topics, sites, best.site, expected)
