"""Better than Algorithm 1 when brokers are full: a topic may take the place of another that can go elsewhere.

Algorithm 1 places each topic once and gives up when the brokers it needs are full. This goes on from its plan
and only accepts changes that lower, in this order, the rate above the limits, the number of late topics, and
the number of moves. So it never returns worse than its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.partitioning.aggregates import NOWHERE
from nearcast.placement.partitioning.planners import current_capacity, described

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.placement.partitioning.aggregates import Brokers, Topics
    from nearcast.placement.partitioning.planners import Partition

__all__ = ["refined"]

ROUNDS = 5  # each change can open a place for another topic; later rounds find little


def refined(topics: Topics, brokers: Brokers, latencies: NDArray[np.float64], start: Partition) -> Partition:
    """A plan with no more overload, late topics and moves than `start`, usually with fewer late topics.

    `latencies` is the latency of every topic at every broker.
    """
    search = _Search(topics, brokers, latencies, start)
    for _ in range(ROUNDS):
        before = search.broker.copy()
        search.relieve()
        search.hurry()
        if (search.broker == before).all():
            break
    search.return_home()
    at_broker = latencies[np.arange(len(topics)), search.broker]
    expected = np.where(search.broker == topics.broker, topics.latency, at_broker)
    return described(topics, brokers, search.broker, expected)


class _Search:
    """The plan so far with its load."""

    def __init__(self, topics: Topics, brokers: Brokers, latencies: NDArray[np.float64], start: Partition) -> None:
        self.home, self.rate, self.latencies = topics.broker, topics.rate, latencies
        self.kept = latencies <= topics.bound[:, None]  # where a topic keeps its bound
        placed = np.flatnonzero(self.home != NOWHERE)
        self.kept[placed, self.home[placed]] = topics.latency[placed] <= topics.bound[placed]
        self.capacity = current_capacity(topics, brokers)
        self.broker, self.load = start.broker.copy(), start.load.copy()

    def late(self) -> NDArray[np.bool_]:
        return np.asarray((self.broker == NOWHERE) | ~self.kept[np.arange(len(self.broker)), self.broker])

    def move(self, topic: int, broker: int) -> None:
        if self.broker[topic] != NOWHERE:
            self.load[self.broker[topic]] -= self.rate[topic]
        if broker != NOWHERE:
            self.load[broker] += self.rate[topic]
        self.broker[topic] = broker

    def enter(self, topic: int, broker: int) -> bool:
        """Put a topic at a broker, if need be in place of others; as it was if those have nowhere to go."""
        undo = [(topic, int(self.broker[topic]))]
        self.move(topic, broker)
        while self.load[broker] > self.capacity[broker]:
            leaver = self.leaver(broker, staying=topic)
            if leaver is None:
                for one, back in reversed(undo):
                    self.move(one, back)
                return False
            undo.append((leaver[0], broker))
            self.move(*leaver)
        return True

    def leaver(self, broker: int, staying: int) -> tuple[int, int] | None:
        """A topic of an overfull broker and where it fits and is no later than here."""
        hosted = np.flatnonzero((self.broker == broker) & (self.rate > 0))
        hosted = hosted[hosted != staying]
        rate, room = self.rate[hosted], self.capacity - self.load
        room[broker] = -1.0
        fits = (rate[:, None] <= room) & (self.kept[hosted] | ~self.kept[hosted, broker][:, None])
        able = fits.any(axis=1)
        if not able.any():
            return None
        # One that is enough alone, else the largest; rather back home than away from it; then the nearest.
        enough = able & (rate >= self.load[broker] - self.capacity[broker])
        fits &= (enough if enough.any() else able & (rate == rate[able].max()))[:, None]
        away = np.arange(len(room)) != self.home[hosted, None]
        cost = np.where(fits, self.latencies[hosted] + away * 1e9, np.inf)
        which, target = np.unravel_index(cost.argmin(), cost.shape)
        return int(hosted[which]), int(target)

    def relieve(self) -> None:
        """Take topics from overloaded brokers, largest first, even if they are late where there is room."""
        for broker in np.flatnonzero(self.load > self.capacity):
            hosted = np.flatnonzero(self.broker == broker)
            for topic in hosted[np.argsort(-self.rate[hosted], kind="stable")].tolist():
                if self.load[broker] <= self.capacity[broker]:
                    break
                order = np.lexsort((self.latencies[topic], ~self.kept[topic]))
                any(self.enter(topic, target) for target in order.tolist() if target != broker)

    def hurry(self) -> None:
        """Bring late topics to where they keep their bound; those with the fewest such brokers first."""
        waiting = np.flatnonzero(self.late() & self.kept.any(axis=1))
        for topic in waiting[np.argsort(self.kept[waiting].sum(axis=1), kind="stable")].tolist():
            targets = np.flatnonzero(self.kept[topic])
            order = targets[np.argsort(self.latencies[topic, targets], kind="stable")].tolist()
            any(self.enter(topic, target) for target in order)

    def return_home(self) -> None:
        """Undo moves that are not needed any more."""
        moved = np.flatnonzero((self.broker != self.home) & (self.home != NOWHERE))
        for topic in moved[self.kept[moved, self.home[moved]]].tolist():
            home = self.home[topic]
            if self.load[home] + self.rate[topic] <= self.capacity[home]:
                self.move(topic, int(home))
