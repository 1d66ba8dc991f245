"""An assignment that changes one subscriber at a time, with every load change exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from nearcast.placement.balance.model import BalanceProblem

__all__ = ["State"]


class State:
    """Subscribers in order of falling load: rank 0 is the heaviest. `broker[rank]` says where each is.

    Those that are sent nothing (`rank >= active`) cannot change a load.
    """

    def __init__(self, problem: BalanceProblem, assignment: NDArray[np.int64]) -> None:
        self.order = np.argsort(-problem.outgoing, kind="stable")
        ranked = csr_array(problem.subscriptions[self.order])
        self.indptr, self.indices, self.times = ranked.indptr, ranked.indices, ranked.data
        self.rates = problem.rates
        self.outgoing = problem.outgoing[self.order]
        self.active = int(np.count_nonzero(self.outgoing > 0))
        self.broker = assignment[self.order]
        at_broker = csr_array(
            (np.ones(len(self.broker), dtype=np.int32), (self.broker, np.arange(len(self.broker)))),
            shape=(problem.brokers, len(self.broker)),
        )
        self.attached = (at_broker @ ranked).toarray()  # n_jk
        self.missing = np.where(self.attached == 0, self.rates, 0.0)  # λ_k where z_jk = 0
        outgoing = np.bincount(self.broker, weights=self.outgoing, minlength=problem.brokers)
        self.load = outgoing + self.rates.sum() - self.missing.sum(axis=1)
        self.heaviest = np.zeros(problem.brokers, dtype=np.int64)  # at or above each broker's heaviest rank
        self.tiny = 1e-11 * float(self.load.sum())

    def assignment(self) -> NDArray[np.int64]:
        """Brokers in the subscribers' own order."""
        result = np.empty_like(self.broker)
        result[self.order] = self.broker
        return result

    def first_not_above(self, load: float) -> int:
        """The heaviest rank that is sent no more than `load`."""
        return int(np.searchsorted(-self.outgoing[: self.active], -load))

    def ranks_at(self, broker: int, low: int) -> Iterator[NDArray[np.int64]]:
        """The broker's subscribers from rank `low` on, heaviest first, in batches that grow."""
        # Nobody above this rank is at the broker: without it, those moved away are looked at again and again.
        nobody = low <= self.heaviest[broker]
        low, width = max(low, int(self.heaviest[broker])), 64
        while low < self.active:
            ranks = low + np.flatnonzero(self.broker[low : min(low + width, self.active)] == broker)
            low, width = low + width, width * 2
            if len(ranks):
                if nobody:
                    self.heaviest[broker], nobody = ranks[0], False
                yield ranks

    def incoming(self, ranks: NDArray[np.int64], brokers: NDArray[np.int64]) -> NDArray[np.float64]:
        """`[broker, rank]`: what each broker would have to fetch in addition for each of these ranks."""
        entries, lengths = self._entries(ranks)
        missing = self.missing[brokers[:, None], self.indices[entries]]
        return np.add.reduceat(missing, np.cumsum(lengths) - lengths, axis=1)

    def relief(self, rank: int) -> float:
        """How much lighter a subscriber's broker is without it."""
        subscriptions, times = self._row(rank)
        sole = self.attached[self.broker[rank], subscriptions] == times
        return float(self.outgoing[rank] + self.rates[subscriptions[sole]].sum())

    def move(self, rank: int, to: int) -> None:
        subscriptions, times = self._row(rank)
        source, outgoing = self.broker[rank], self.outgoing[rank]
        self.attached[source, subscriptions] -= times
        gone = subscriptions[self.attached[source, subscriptions] == 0]
        self.missing[source, gone] = self.rates[gone]
        self.load[source] -= outgoing + self.rates[gone].sum()
        self.load[to] += outgoing + self.missing[to, subscriptions].sum()
        self.missing[to, subscriptions] = 0.0
        self.attached[to, subscriptions] += times
        self.broker[rank] = to
        self.heaviest[to] = min(self.heaviest[to], rank)

    def move_many(self, ranks: NDArray[np.int64], to: NDArray[np.int64]) -> None:
        """Many at once, each rank named once."""
        entries, lengths = self._entries(ranks)
        subscriptions, times = self.indices[entries], self.times[entries]
        np.subtract.at(self.attached, (np.repeat(self.broker[ranks], lengths), subscriptions), times)
        np.add.at(self.attached, (np.repeat(to, lengths), subscriptions), times)
        np.subtract.at(self.load, self.broker[ranks], self.outgoing[ranks])
        np.add.at(self.load, to, self.outgoing[ranks])
        touched = np.unique(subscriptions)
        missing = np.where(self.attached[:, touched] == 0, self.rates[touched], 0.0)
        self.load += (self.missing[:, touched] - missing).sum(axis=1)
        self.missing[:, touched] = missing
        self.broker[ranks] = to
        np.minimum.at(self.heaviest, to, ranks)

    def _entries(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the rows of these ranks are in `indices`, one after the other, and how long each is."""
        lengths = self.indptr[ranks + 1] - self.indptr[ranks]
        starts = np.cumsum(lengths) - lengths
        return np.repeat(self.indptr[ranks] - starts, lengths) + np.arange(lengths.sum()), lengths

    def _row(self, rank: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        row = slice(self.indptr[rank], self.indptr[rank + 1])
        return self.indices[row], self.times[row]
