"""Better than Algorithm 1 when sites are full: a topic may take the place of another that can go elsewhere.

Algorithm 1 places each topic once and gives up when the sites it needs are full. This goes on from its plan
and only accepts changes that lower, in this order, the rate above the limits, the number of late topics, and
the number of moves. So it never returns worse than its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.partitioning.planners import current_capacity, described
from nearcast.placement.partitioning.problem import NOWHERE

if TYPE_CHECKING:
    from nearcast.placement.arrays import Bools, Floats
    from nearcast.placement.partitioning.planners import Partition
    from nearcast.placement.partitioning.problem import PartitionSites, PartitionTopics

__all__ = ["refined"]

ROUNDS = 5  # each change can open a place for another topic; later rounds find little


def refined(topics: PartitionTopics, sites: PartitionSites, latencies: Floats, start: Partition) -> Partition:
    """A plan with no more overload, late topics and moves than `start`, usually with fewer late topics.

    `latencies` is the latency of every topic at every site.
    """
    search = _PartitionSearch(topics, sites, latencies, start)
    for _ in range(ROUNDS):
        before = search.site.copy()
        search.relieve()
        search.hurry()
        if (search.site == before).all():
            break
    search.return_home()
    at_broker = latencies[np.arange(len(topics)), search.site]
    expected = np.where(search.site == topics.site, topics.latency, at_broker)
    return described(topics, sites, search.site, expected)


class _PartitionSearch:
    """The plan so far with its load."""

    def __init__(self, topics: PartitionTopics, sites: PartitionSites, latencies: Floats, start: Partition) -> None:
        self.home, self.rate, self.latencies = topics.site, topics.rate, latencies
        self.kept = latencies <= topics.bound[:, None]  # where a topic keeps its bound
        placed = np.flatnonzero(self.home != NOWHERE)
        self.kept[placed, self.home[placed]] = topics.latency[placed] <= topics.bound[placed]
        self.capacity = current_capacity(topics, sites)
        self.site, self.load = start.site.copy(), start.load.copy()

    def late(self) -> Bools:
        return np.asarray((self.site == NOWHERE) | ~self.kept[np.arange(len(self.site)), self.site])

    def move(self, topic: int, site: int) -> None:
        if self.site[topic] != NOWHERE:
            self.load[self.site[topic]] -= self.rate[topic]
        if site != NOWHERE:
            self.load[site] += self.rate[topic]
        self.site[topic] = site

    def enter(self, topic: int, site: int) -> bool:
        """Put a topic at a site, if need be in place of others; as it was if those have nowhere to go."""
        undo = [(topic, int(self.site[topic]))]
        self.move(topic, site)
        while self.load[site] > self.capacity[site]:
            leaver = self.leaver(site, staying=topic)
            if leaver is None:
                for one, back in reversed(undo):
                    self.move(one, back)
                return False
            undo.append((leaver[0], site))
            self.move(*leaver)
        return True

    def leaver(self, site: int, staying: int) -> tuple[int, int] | None:
        """A topic of an overfull site and where it fits and is no later than here."""
        hosted = np.flatnonzero((self.site == site) & (self.rate > 0))
        hosted = hosted[hosted != staying]
        rate, room = self.rate[hosted], self.capacity - self.load
        room[site] = -1.0
        fits = (rate[:, None] <= room) & (self.kept[hosted] | ~self.kept[hosted, site][:, None])
        able = fits.any(axis=1)
        if not able.any():
            return None
        # One that is enough alone, else the largest; rather back home than away from it; then the nearest.
        enough = able & (rate >= self.load[site] - self.capacity[site])
        fits &= (enough if enough.any() else able & (rate == rate[able].max()))[:, None]
        away = np.arange(len(room)) != self.home[hosted, None]
        cost = np.where(fits, self.latencies[hosted] + away * 1e9, np.inf)
        which, target = np.unravel_index(cost.argmin(), cost.shape)
        return int(hosted[which]), int(target)

    def relieve(self) -> None:
        """Take topics from overloaded sites, largest first, even if they are late where there is room."""
        for site in np.flatnonzero(self.load > self.capacity):
            hosted = np.flatnonzero(self.site == site)
            for topic in hosted[np.argsort(-self.rate[hosted], kind="stable")].tolist():
                if self.load[site] <= self.capacity[site]:
                    break
                order = np.lexsort((self.latencies[topic], ~self.kept[topic]))
                any(self.enter(topic, target) for target in order.tolist() if target != site)

    def hurry(self) -> None:
        """Bring late topics to where they keep their bound; those with the fewest such sites first."""
        waiting = np.flatnonzero(self.late() & self.kept.any(axis=1))
        for topic in waiting[np.argsort(self.kept[waiting].sum(axis=1), kind="stable")].tolist():
            targets = np.flatnonzero(self.kept[topic])
            order = targets[np.argsort(self.latencies[topic, targets], kind="stable")].tolist()
            any(self.enter(topic, target) for target in order)

    def return_home(self) -> None:
        """Undo moves that are not needed any more."""
        moved = np.flatnonzero((self.site != self.home) & (self.home != NOWHERE))
        for topic in moved[self.kept[moved, self.home[moved]]].tolist():
            home = self.home[topic]
            if self.load[home] + self.rate[topic] <= self.capacity[home]:
                self.move(topic, int(home))
