"""Local search on a partitioning: chains of topics that make room, single moves, exchanges of two topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.partitioning.problem import NOWHERE, moved

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["PartitionSearch"]

ROUNDS = 5  # each change can open a place for another topic; later rounds find little
EXCHANGED = 2_000  # topics that look for a partner in one round


class PartitionSearch:
    """The plan so far with its load. `cost` is what is late, and far below that whether the topic is moved."""

    def __init__(
        self,
        home: Ints,
        rate: Floats,
        capacity: Floats,
        latencies: Floats,
        late: Floats,
        site: Ints,
        moves_at_most: int | None,
    ) -> None:
        self.home, self.rate, self.capacity, self.latencies, self.late = home, rate, capacity, latencies, late
        self.moved = moved(home, len(capacity))
        self.cost = (len(home) + 1) * late + self.moved
        self.most = len(home) if moves_at_most is None else moves_at_most
        self.site = site.copy()
        placed = self.site != NOWHERE
        self.load = np.bincount(self.site[placed], rate[placed], len(capacity)).astype(float)
        self.moves = int(np.count_nonzero((site != home) & (home != NOWHERE)))

    def merit(self) -> tuple[int, float, int, float, int]:
        """What is compared: moves above the cap, rate above the limits, topics without a site, what is late, moves."""
        scale = max(float(self.capacity.max(initial=0.0)), 1e-300)
        over = float(np.maximum(self.load - self.capacity, 0.0).sum()) / scale
        placed = np.flatnonzero(self.site != NOWHERE)
        late = float(self.late[placed, self.site[placed]].sum())
        return max(self.moves - self.most, 0), round(over, 9), len(self.site) - len(placed), late, self.moves

    def improve(self) -> None:
        """Until nothing changes, or the rounds are used up."""
        for _ in range(ROUNDS):
            before = self.site.copy()
            self.relieve()
            self.hurry()
            self.shift()
            self.exchange()
            if (self.site == before).all():
                break

    def relieve(self) -> None:
        """Take topics from overloaded sites, largest first, even if they are late where there is room."""
        for site in np.flatnonzero(self.load > self.capacity):
            hosted = np.flatnonzero(self.site == site)
            for topic in hosted[np.argsort(-self.rate[hosted], kind="stable")].tolist():
                if self.load[site] <= self.capacity[site]:
                    break
                order = np.lexsort((self.latencies[topic], self.cost[topic]))
                any(self.enter(topic, target) for target in order.tolist() if target != site)

    def hurry(self) -> None:
        """Bring late topics to where they are less late; those with the fewest such sites first."""
        now = self._now(self.late)
        better = self.late < now[:, None]
        waiting = np.flatnonzero(better.any(axis=1))
        for topic in waiting[np.argsort(better[waiting].sum(axis=1), kind="stable")].tolist():
            targets = np.flatnonzero(better[topic])
            order = targets[np.lexsort((self.latencies[topic, targets], self.late[topic, targets]))]
            any(self.enter(topic, target) for target in order.tolist())

    def shift(self) -> None:
        """Single topics to cheaper sites with room: home again if they are not needed elsewhere."""
        for topic in np.flatnonzero(self._now(self.cost) > self.cost.min(axis=1)).tolist():
            here = int(self.site[topic])
            room = self.load + self.rate[topic] <= self.capacity
            gain = np.where(room, (np.inf if here == NOWHERE else self.cost[topic, here]) - self.cost[topic], -np.inf)
            if not self._may_move(topic):
                gain = np.where(self.moved[topic], -np.inf, gain)
            best = np.lexsort((self.latencies[topic], -gain))[0]
            if gain[best] > 0:
                self.move(topic, int(best))

    def exchange(self) -> None:
        """Two topics take each other's place where that is cheaper for both together."""
        wanting = np.flatnonzero((self._now(self.cost) > self.cost.min(axis=1)) & (self.site != NOWHERE))
        placed = np.flatnonzero(self.site != NOWHERE)
        now = self.cost[placed, self.site[placed]]
        for topic in wanting[:EXCHANGED].tolist():
            here, there = int(self.site[topic]), self.site[placed]
            gain = self.cost[topic, here] - self.cost[topic, there] + now - self.cost[placed, here]
            rate, other = self.rate[topic], self.rate[placed]
            fits = (self.load[here] - rate + other <= self.capacity[here]) & (
                self.load[there] - other + rate <= self.capacity[there]
            )
            if self.moves + 2 > self.most:
                more = self.moved[topic, there].astype(int) + self.moved[placed, here]
                before = int(self.moved[topic, here]) + self.moved[placed, there]
                fits &= self.moves + more - before <= self.most
            gain = np.where(fits & (there != here), gain, -np.inf)
            best = int(gain.argmax())
            if gain[best] > 0:
                partner, target = int(placed[best]), int(there[best])
                self.move(topic, target)
                self.move(partner, here)
                now[best] = self.cost[partner, here]
                now[placed == topic] = self.cost[topic, target]

    def enter(self, topic: int, site: int) -> bool:
        """Put a topic at a site, if need be in place of others; as it was if those have nowhere to go."""
        undo = [(topic, int(self.site[topic]))]
        self.move(topic, site)
        while self.load[site] > self.capacity[site] or self.moves > self.most:
            leaver = self._leaver(site, staying=topic) if self.moves <= self.most else None
            if leaver is None:
                for one, back in reversed(undo):
                    self.move(one, back)
                return False
            undo.append((leaver[0], site))
            self.move(*leaver)
        return True

    def move(self, topic: int, site: int) -> None:
        here, home = int(self.site[topic]), int(self.home[topic])
        if here != NOWHERE:
            self.load[here] -= self.rate[topic]
        if site != NOWHERE:
            self.load[site] += self.rate[topic]
        self.moves += int(home != NOWHERE) * (int(site != home) - int(here != home))
        self.site[topic] = site

    def _leaver(self, site: int, staying: int) -> tuple[int, int] | None:
        """A topic of an overfull site and where it fits and is no later than here."""
        hosted = np.flatnonzero((self.site == site) & (self.rate > 0))
        hosted = hosted[hosted != staying]
        rate, room = self.rate[hosted], self.capacity - self.load
        room[site] = -1.0
        fits = (rate[:, None] <= room) & (self.late[hosted] <= self.late[hosted, site][:, None])
        able = fits.any(axis=1)
        if not able.any():
            return None
        # One that is enough alone, else the largest; rather back home than away from it; then the nearest.
        enough = able & (rate >= self.load[site] - self.capacity[site])
        fits &= (enough if enough.any() else able & (rate == rate[able].max()))[:, None]
        order = np.lexsort((self.latencies[hosted].ravel(), self.cost[hosted].ravel(), ~fits.ravel()))
        which, target = divmod(int(order[0]), len(room))
        return int(hosted[which]), target

    def _now(self, values: Floats) -> Floats:
        """A topic's value where it is; infinite where it is nowhere."""
        return np.where(self.site == NOWHERE, np.inf, values[np.arange(len(self.site)), self.site])

    def _may_move(self, topic: int) -> bool:
        away = self.home[topic] != NOWHERE and self.site[topic] != self.home[topic]
        return bool(away or self.moves < self.most)
