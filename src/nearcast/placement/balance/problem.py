"""Who subscribes to what, what load that puts on each site (Eq. 1-8)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["NOWHERE", "BalancePlan", "BalanceProblem", "cov", "from_pairs", "loads", "report"]

NOWHERE = -1  # the site of a subscriber that has none yet


@dataclass(frozen=True)
class BalanceProblem:
    """n subscribers, q backend subscriptions, m sites: y_ik as `subscriptions`, λ_k as `rates`.

    An entry of `subscriptions` above 1 stands for several subscribers that are moved as one.
    """

    subscriptions: Any  # csr_array, subscribers x subscriptions
    rates: Floats
    sites: int

    @property
    def subscribers(self) -> int:
        return int(self.subscriptions.shape[0])

    @cached_property
    def outgoing(self) -> Floats:
        """u_i = Σ_k y_ik λ_k: what has to be sent to each subscriber."""
        return np.asarray(self.subscriptions @ self.rates)


def from_pairs(subscriber: Ints, subscription: Ints, rates: Floats, *, subscribers: int, sites: int) -> BalanceProblem:
    """The problem with one frontend subscription per pair."""
    once = np.ones(len(subscriber), dtype=np.int32)
    shape = (subscribers, len(rates))
    return BalanceProblem(csr_array((once, (subscriber, subscription)), shape=shape), rates, sites)


def loads(problem: BalanceProblem, assignment: Ints) -> Floats:
    """F_j: each subscription a site holds comes in once and goes out to each who has it (Eq. 1-5)."""
    placed = np.flatnonzero(assignment != NOWHERE)
    at_site = csr_array(
        (np.ones(len(placed)), (assignment[placed], placed)), shape=(problem.sites, problem.subscribers)
    )
    attached = at_site @ problem.subscriptions  # n_jk (Eq. 3)
    attached.eliminate_zeros()
    outgoing = attached @ problem.rates  # Eq. 4
    attached.data[:] = 1  # z_jk (Eq. 2)
    return np.asarray(attached @ problem.rates + outgoing)


def cov(load: Floats) -> float:
    """Coefficient of variation of the sites' loads (Eq. 6-8)."""
    highest = float(load.max(initial=0.0))
    if highest <= 0:
        return 0.0
    share = load / highest  # squares of large loads would overflow
    return float(share.std()) / float(share.mean())


@dataclass(frozen=True)
class BalancePlan:
    """A new assignment of subscribers to sites, and what it changes.

    A subscriber that has no site yet (`NOWHERE`) is placed, not moved.
    """

    assignment: Ints
    moved: Ints  # the subscribers whose site changes
    loads_before: Floats
    loads: Floats

    @property
    def max_load(self) -> float:
        return float(self.loads.max())

    @property
    def moves(self) -> int:
        return len(self.moved)


def report(problem: BalanceProblem, current: Ints, assignment: Ints) -> BalancePlan:
    """The result with its figures, computed afresh."""
    moved = np.flatnonzero((assignment != current) & (current != NOWHERE))
    return BalancePlan(assignment, moved, loads(problem, current), loads(problem, assignment))
