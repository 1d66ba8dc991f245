"""Beyond the paper: a local search over stores and replicas with exact changes of the traffic (Eq. 3).

Failure-aware, the cost is the expected traffic when each store is down with some probability: a request goes to the
nearest replica that is up, so the second nearest counts, too, and the third a little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.progress import no_progress
from nearcast.placement.storage.problem import StoragePlan, StorageProblem, evaluate

if TYPE_CHECKING:
    from nearcast.placement.arrays import Bools, Floats, Ints
    from nearcast.placement.progress import Advance

__all__ = ["refined"]

# A store is moved to one of this many nodes nearest to it.
_NEIGHBOURS = 64


# Failure-aware, this many of the nearest replicas count; the last stands for all beyond it.
_LEVELS = 4


def refined(
    problem: StorageProblem,
    start: StoragePlan,
    *,
    seed: int = 0,
    perturbations: int = 0,
    failure: float = 0.0,
    min_replicas: int | None = None,
    keep_stores: bool = False,
    advance: Advance = no_progress,
) -> StoragePlan:
    """Improve a plan until no single step does: move a store, move a replica, swap two replicas.

    With `min_replicas`, a replica may also give its place to another topic, down to that many: k_t is then what saves
    most, not what the weights say. `failure` is the probability that a store is down. Each of `perturbations` disturbs
    the best plan at random, searches again and keeps what is better. Never worse than its start in that cost. A sweep
    costs about (replicas x stores x nodes) operations.
    """
    rng = np.random.default_rng(seed)
    first = _StorageSearch(problem, start.stores, start.placed[:, start.stores], failure)
    before = first.traffic
    best = _descend(first, min_replicas, keep_stores)
    for perturbation in range(perturbations):
        candidate = _descend(best.perturbed(rng, keep_stores), min_replicas, keep_stores)
        if candidate.traffic < best.traffic:
            best = candidate
        advance((perturbation + 1) / perturbations)
    return best.plan() if best.traffic <= before else start


def _descend(search: _StorageSearch, min_replicas: int | None, keep_stores: bool) -> _StorageSearch:
    improved = True
    while improved:
        improved = not keep_stores and search.move_stores()
        search.tabulate()
        # Not `or` between them: both must run.
        while search.move_replicas() | search.swap_replicas():
            improved = True
        while min_replicas is not None and (held := search.better_degrees(min_replicas)) is not None:
            search, improved = _StorageSearch(search.problem, search.stores, held, search.failure), True
    return search


class _StorageSearch:
    """A plan being improved. A row stands for one replica: its topic, the store that holds it.

    `change[row, b]` is what the topic's traffic changes by when the replica moves to store b; it is infinite
    where the topic has a replica already.
    """

    def __init__(self, problem: StorageProblem, stores: Ints, held: Bools, failure: float = 0.0) -> None:
        self.problem = problem
        self.failure = failure
        levels = np.arange(_LEVELS if failure else 1)
        self.level_weights = failure**levels * np.where(levels < len(levels) - 1, 1 - failure, 1.0)
        # When no replica is up a request goes as far as any could.
        self.lost = 2 * float(problem.network.distance.max())
        self.stores = stores.copy()
        self.topic, self.store = np.nonzero(held)
        self.first = np.searchsorted(self.topic, np.arange(len(held) + 1))
        self.asking = [np.flatnonzero(row) for row in problem.demand]
        self.rates = [row[nodes] for row, nodes in zip(problem.demand, self.asking, strict=True)]
        self.room = np.full(len(stores), problem.capacity * (1 + 1e-12))
        np.subtract.at(self.room, self.store, problem.sizes[self.topic])
        self.change = np.empty((len(self.topic), len(stores)))
        self.cost = np.array([self._cost(t) for t in range(len(held))])

    @property
    def traffic(self) -> float:
        return float(self.cost.sum())

    @property
    def held(self) -> Bools:
        held = np.zeros((len(self.cost), len(self.stores)), dtype=bool)
        held[self.topic, self.store] = True
        return held

    @property
    def negligible(self) -> float:
        return 1e-10 * (1 + self.traffic)

    def perturbed(self, rng: np.random.Generator, keep_stores: bool = False) -> _StorageSearch:
        """A copy with some stores moved to random nodes and some replicas exchanged at random."""
        nodes = self.problem.network.nodes
        stores, held = self.stores.copy(), self.held
        most = 0 if keep_stores else int(rng.integers(1, len(stores) + 1))
        moved = rng.choice(len(stores), size=most, replace=False)
        free = np.setdiff1d(np.arange(nodes), np.delete(stores, moved))
        stores[moved] = rng.choice(free, size=len(moved), replace=False)
        used = self.problem.sizes @ held
        for a, b in rng.integers(len(stores), size=(len(stores), 2)):
            there, back = np.flatnonzero(held[:, a] & ~held[:, b]), np.flatnonzero(held[:, b] & ~held[:, a])
            if not len(there) or not len(back):
                continue
            pair = np.array([rng.choice(there), rng.choice(back)])
            more = self.problem.sizes[pair[0]] - self.problem.sizes[pair[1]]
            if max(used[a] - more, used[b] + more) <= self.problem.capacity:
                held[np.ix_(pair, [a, b])] = ~held[np.ix_(pair, [a, b])]
                used[[a, b]] += -more, more
        return _StorageSearch(self.problem, stores, held, self.failure)

    def plan(self) -> StoragePlan:
        placed = np.zeros(self.problem.demand.shape, dtype=bool)
        placed[self.topic, self.stores[self.store]] = True
        return evaluate(self.problem, self.stores, placed)

    def _rows(self, topic: int) -> slice:
        return slice(self.first[topic], self.first[topic + 1])

    def _distances(self, topic: int) -> Floats:
        """From the topic's replicas to the nodes that ask for it."""
        holders = self.stores[self.store[self._rows(topic)]]
        return np.asarray(self.problem.network.distance[np.ix_(holders, self.asking[topic])])

    def _cost(self, topic: int) -> float:
        return float(self.level_weights @ self._nearest(self._distances(topic)) @ self.rates[topic])

    def _nearest(self, distances: Floats) -> Floats:
        """`[level, node]`: distances to the nearest replicas, nearest first; where there are fewer, `lost`."""
        levels = len(self.level_weights)
        if levels == 1 and len(distances):
            return np.asarray(distances.min(axis=0, keepdims=True))
        kept = np.sort(distances, axis=0)[:levels]
        return np.pad(kept, ((0, levels - len(kept)), (0, 0)), constant_values=self.lost)

    def _without(self, topic: int) -> Floats:
        """`[replica, level, node]`: distances to the nearest replicas when that one is gone."""
        distances = self._distances(topic)
        if len(self.level_weights) > 1 or len(distances) == 1:
            return np.stack([self._nearest(np.delete(distances, row, axis=0)) for row in range(len(distances))])
        nearest, second = np.partition(distances, 1, axis=0)[:2]
        closest = distances.argmin(axis=0) == np.arange(len(distances))[:, None]
        return np.asarray(np.where(closest, second, nearest)[:, None, :])

    def _with(self, nearest: Floats, to: Floats) -> Floats:
        """Expected distances `[candidate, node]` when a replica at distances `to` joins those of `_nearest`."""
        expected = self.level_weights[0] * np.minimum(nearest[0], to)
        for level in range(1, len(nearest)):
            expected += self.level_weights[level] * np.maximum(nearest[level - 1], np.minimum(nearest[level], to))
        return np.asarray(expected)

    def tabulate(self) -> None:
        for topic in range(len(self.cost)):
            self._tabulate(topic)

    def _tabulate(self, topic: int) -> None:
        rows, rates = self._rows(topic), self.rates[topic]
        to = self.problem.network.distance[np.ix_(self.stores, self.asking[topic])]
        for row, without in zip(range(rows.start, rows.stop), self._without(topic), strict=True):
            self.change[row] = self._with(without, to) @ rates - self.cost[topic]
        self.change[rows, self.store[rows]] = np.inf

    def _apply(self, row: int, store: int) -> None:
        topic = int(self.topic[row])
        size = self.problem.sizes[topic]
        self.room[self.store[row]] += size
        self.room[store] -= size
        self.store[row] = store
        self.cost[topic] = self._cost(topic)
        self._tabulate(topic)

    def move_replicas(self) -> bool:
        """Move single replicas to stores with room, the best move of each topic first."""
        improved = False
        for topic in range(len(self.cost)):
            while True:
                rows = self._rows(topic)
                fits = self.room >= self.problem.sizes[topic]
                change = np.where(fits, self.change[rows], np.inf)
                row, store = divmod(int(change.argmin()), len(self.stores))
                if change[row, store] >= -self.negligible:
                    break
                self._apply(rows.start + row, store)
                improved = True
        return improved

    def swap_replicas(self) -> bool:
        """Let two stores exchange one replica each, the best pair of each two stores."""
        improved = False
        sizes = self.problem.sizes[self.topic]
        for a, b in self._promising_pairs():
            there, back = np.flatnonzero(self.store == a), np.flatnonzero(self.store == b)
            go, come = self.change[there, b], self.change[back, a]
            more = sizes[there][:, None] - sizes[back]  # what store b holds more afterwards
            fits = (more <= self.room[b]) & (-more <= self.room[a])
            change = np.where(fits, go[:, None] + come, np.inf)
            x, y = divmod(int(change.argmin()), len(back))
            if change[x, y] < -self.negligible:
                self._apply(there[x], b)
                self._apply(back[y], a)
                improved = True
        return improved

    def _promising_pairs(self) -> list[list[int]]:
        """Pairs of stores whose best changes, were they to fit, would help together."""
        lowest = np.full((len(self.stores), len(self.stores)), np.inf)
        np.minimum.at(lowest, self.store, self.change)
        pairs: list[list[int]] = np.argwhere(np.tril(lowest + lowest.T < -self.negligible, -1)).tolist()
        return pairs

    def move_stores(self) -> bool:
        """Move whole stores, with all they hold, to nodes near them that have none."""
        improved = False
        distance = self.problem.network.distance
        for place in range(len(self.stores)):
            near = np.argsort(distance[self.stores[place]], kind="stable")
            near = near[~np.isin(near, self.stores)][:_NEIGHBOURS]
            if not len(near):
                continue
            change = np.zeros(len(near))
            rows = np.flatnonzero(self.store == place)
            for row in rows:
                topic = int(self.topic[row])
                without = self._without(topic)[row - self.first[topic]]
                to = distance[np.ix_(near, self.asking[topic])]
                change += self._with(without, to) @ self.rates[topic] - self.cost[topic]
            if change.min() < -self.negligible:
                self.stores[place] = near[change.argmin()]
                for topic in self.topic[rows]:
                    self.cost[topic] = self._cost(topic)
                improved = True
        return improved

    def better_degrees(self, min_replicas: int) -> Bools | None:
        """What the stores hold after the best change of degrees: a replica gives its place to one of another topic.

        Free places are filled, too. None when nothing helps.
        """
        topics, stores, sizes, held = len(self.cost), len(self.stores), self.problem.sizes, self.held
        loss = np.full((topics, stores), np.inf)  # of giving up a replica
        gain = np.full((topics, stores), np.inf)  # of one more; below 0
        for topic in range(topics):
            rates = self.rates[topic]
            to = self.problem.network.distance[np.ix_(self.stores, self.asking[topic])]
            gain[topic] = self._with(self._nearest(self._distances(topic)), to) @ rates - self.cost[topic]
            if held[topic].sum() > min_replicas:
                at = self.store[self._rows(topic)]
                loss[topic, at] = (self.level_weights @ self._without(topic)) @ rates - self.cost[topic]
        gain[held] = np.inf
        best, change = None, -self.negligible
        for store in range(stores):
            for comes in np.flatnonzero(gain[:, store] < change).tolist():
                leaves = loss[:, store] + np.where(self.room[store] + sizes >= sizes[comes], 0.0, np.inf)
                goes = int(leaves.argmin())
                without = 0.0 if self.room[store] >= sizes[comes] else float(leaves[goes])
                if gain[comes, store] + without < change:
                    change = gain[comes, store] + without
                    best = (store, comes, None if self.room[store] >= sizes[comes] else goes)
        if best is None:
            return None
        store, comes, leaving = best
        held[comes, store] = True
        if leaving is not None:
            held[leaving, store] = False
        return held
