"""An assignment that changes one subscriber at a time, with every load change exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.balance.problem import BalanceProblem

__all__ = ["IncrementalLoad"]


class IncrementalLoad:
    """Subscribers in order of falling load: rank 0 is the heaviest. `site[rank]` is where each is.

    Those that are sent nothing (`rank >= active`) cannot change a load.
    """

    def __init__(self, problem: BalanceProblem, assignment: Ints) -> None:
        self.order = np.argsort(-problem.outgoing, kind="stable")
        ranked = csr_array(problem.subscriptions[self.order])
        self.indptr, self.indices, self.times = ranked.indptr, ranked.indices, ranked.data
        self.rates = problem.rates
        self.outgoing = problem.outgoing[self.order]
        self.active = int(np.count_nonzero(self.outgoing > 0))
        self.site = assignment[self.order]
        at_site = csr_array(
            (np.ones(len(self.site), dtype=np.int32), (self.site, np.arange(len(self.site)))),
            shape=(problem.sites, len(self.site)),
        )
        self.attached = (at_site @ ranked).toarray()  # n_jk
        self.missing = np.where(self.attached == 0, self.rates, 0.0)  # λ_k where z_jk = 0
        outgoing = np.bincount(self.site, weights=self.outgoing, minlength=problem.sites)
        self.load = outgoing + self.rates.sum() - self.missing.sum(axis=1)
        self.heaviest = np.zeros(problem.sites, dtype=np.int64)  # at or above each site's heaviest rank
        self.tiny = 1e-11 * float(self.load.sum())

    def assignment(self) -> Ints:
        """Brokers in the subscribers' own order."""
        result = np.empty_like(self.site)
        result[self.order] = self.site
        return result

    def first_not_above(self, load: float) -> int:
        """The heaviest rank that is sent no more than `load`."""
        return int(np.searchsorted(-self.outgoing[: self.active], -load))

    def ranks_at(self, site: int, low: int) -> Iterator[Ints]:
        """The site's subscribers from rank `low` on, heaviest first, in batches that grow."""
        # No subscriber above this rank is at the site; without it, those moved away would be examined again.
        from_heaviest = low <= self.heaviest[site]
        low, width = max(low, int(self.heaviest[site])), 64
        while low < self.active:
            ranks = low + np.flatnonzero(self.site[low : min(low + width, self.active)] == site)
            low, width = low + width, width * 2
            if len(ranks):
                if from_heaviest:
                    self.heaviest[site], from_heaviest = ranks[0], False
                yield ranks

    def incoming(self, ranks: Ints, sites: Ints) -> Floats:
        """`[site, rank]`: what each site would have to fetch in addition for each of these ranks."""
        entries, lengths = self._entries(ranks)
        missing = self.missing[sites[:, None], self.indices[entries]]
        return np.add.reduceat(missing, np.cumsum(lengths) - lengths, axis=1)

    def relief(self, rank: int) -> float:
        """How much lighter a subscriber's site is without it."""
        subscriptions, times = self._row(rank)
        sole = self.attached[self.site[rank], subscriptions] == times
        return float(self.outgoing[rank] + self.rates[subscriptions[sole]].sum())

    def move(self, rank: int, to: int) -> None:
        subscriptions, times = self._row(rank)
        source, outgoing = self.site[rank], self.outgoing[rank]
        self.attached[source, subscriptions] -= times
        gone = subscriptions[self.attached[source, subscriptions] == 0]
        self.missing[source, gone] = self.rates[gone]
        self.load[source] -= outgoing + self.rates[gone].sum()
        self.load[to] += outgoing + self.missing[to, subscriptions].sum()
        self.missing[to, subscriptions] = 0.0
        self.attached[to, subscriptions] += times
        self.site[rank] = to
        self.heaviest[to] = min(self.heaviest[to], rank)

    def move_many(self, ranks: Ints, to: Ints) -> None:
        """Many at once, each rank named once."""
        entries, lengths = self._entries(ranks)
        subscriptions, times = self.indices[entries], self.times[entries]
        np.subtract.at(self.attached, (np.repeat(self.site[ranks], lengths), subscriptions), times)
        np.add.at(self.attached, (np.repeat(to, lengths), subscriptions), times)
        np.subtract.at(self.load, self.site[ranks], self.outgoing[ranks])
        np.add.at(self.load, to, self.outgoing[ranks])
        touched = np.unique(subscriptions)
        missing = np.where(self.attached[:, touched] == 0, self.rates[touched], 0.0)
        self.load += (self.missing[:, touched] - missing).sum(axis=1)
        self.missing[:, touched] = missing
        self.site[ranks] = to
        np.minimum.at(self.heaviest, to, ranks)

    def _entries(self, ranks: Ints) -> tuple[Ints, Ints]:
        """Where the rows of these ranks are in `indices`, one after the other, and how long each is."""
        lengths = self.indptr[ranks + 1] - self.indptr[ranks]
        starts = np.cumsum(lengths) - lengths
        return np.repeat(self.indptr[ranks] - starts, lengths) + np.arange(lengths.sum()), lengths

    def _row(self, rank: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        row = slice(self.indptr[rank], self.indptr[rank + 1])
        return self.indices[row], self.times[row]
