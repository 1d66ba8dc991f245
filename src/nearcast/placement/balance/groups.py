"""Group moves, which the paper leaves for later: subscribers with similar subscriptions move together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from nearcast.placement.balance.migration import sdm
from nearcast.placement.balance.model import Balance, BalanceProblem, report

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["grouped", "group_shuffle", "similar_groups"]

# Groups per broker: enough that one is a small part of a broker's load.
_PER_BROKER = 16
_DIMENSIONS = 16


def grouped(
    problem: BalanceProblem,
    current: NDArray[np.int64],
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    seed: int = 0,
) -> Balance:
    """Similarity-based migration of whole groups, then of single subscribers for what is left.

    A subscriber that moves alone leaves its subscriptions' incoming load behind with those who share them;
    a group takes it along.
    """
    labels = similar_groups(problem, _PER_BROKER * problem.brokers, seed)
    # A group moves as one, so its members must be at one broker: the others form groups of their own.
    pieces, member = np.unique(labels * problem.brokers + current, return_inverse=True)
    moved = sdm(_merged(problem, member, len(pieces)), pieces % problem.brokers, alpha=alpha, beta=beta)
    singles = sdm(problem, moved.assignment[member], alpha=alpha, beta=beta)
    return report(problem, current, singles.assignment)


def group_shuffle(problem: BalanceProblem, seed: int = 0) -> NDArray[np.int64]:
    """Assign groups anew, heaviest first, each to the broker whose load is least with it."""
    labels = similar_groups(problem, _PER_BROKER * problem.brokers, seed)
    groups = _merged(problem, labels, int(labels.max()) + 1)
    missing = np.tile(problem.rates, (problem.brokers, 1))
    load = np.zeros(problem.brokers)
    broker = np.zeros(groups.subscribers, dtype=np.int64)
    for group in np.argsort(-groups.outgoing, kind="stable"):
        row = slice(groups.subscriptions.indptr[group], groups.subscriptions.indptr[group + 1])
        subscriptions = groups.subscriptions.indices[row]
        after = load + groups.outgoing[group] + missing[:, subscriptions].sum(axis=1)
        to = int(after.argmin())
        load[to], broker[group] = after[to], to
        missing[to, subscriptions] = 0.0
    return broker[labels]


def similar_groups(problem: BalanceProblem, count: int, seed: int) -> NDArray[np.int64]:
    """At most `count` groups of subscribers with similar subscriptions, heavy subscriptions counting more."""
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import TruncatedSVD

    weighted = csr_array(problem.subscriptions * np.sqrt(problem.rates)[None, :])
    dimensions = min(_DIMENSIONS, min(weighted.shape) - 1)
    if dimensions < 1:
        return np.zeros(problem.subscribers, dtype=np.int64)
    place = TruncatedSVD(dimensions, random_state=seed).fit_transform(weighted)
    length = np.linalg.norm(place, axis=1, keepdims=True)
    # Rounded, so that equal subscribers are equal and more clusters than places are never asked for.
    place = np.round(place / np.where(length > 0, length, 1.0), 6)
    distinct = len(np.unique(place, axis=0))
    clusters = MiniBatchKMeans(min(count, distinct), random_state=seed, n_init=1, batch_size=4096)
    return np.unique(clusters.fit_predict(place), return_inverse=True)[1].astype(np.int64)


def _merged(problem: BalanceProblem, member: NDArray[np.int64], groups: int) -> BalanceProblem:
    """The problem in which each group is one subscriber."""
    once = np.ones(len(member), dtype=np.int32)
    membership = csr_array((once, (member, np.arange(len(member)))), shape=(groups, len(member)))
    return BalanceProblem(csr_array(membership @ problem.subscriptions), problem.rates, problem.brokers)
