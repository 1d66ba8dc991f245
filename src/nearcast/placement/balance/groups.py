"""Group moves, the paper's future work: subscribers with similar subscriptions move together."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds

from nearcast.placement.balance.planners import sdm
from nearcast.placement.balance.problem import BalancePlan, BalanceProblem, report

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = ["group_shuffle", "grouped", "similar_groups"]

# Groups per site: enough that one is a small part of a site's load.
_PER_SITE = 16
_DIMENSIONS = 16


def grouped(
    problem: BalanceProblem, current: Ints, *, alpha: float = 0.0, beta: float = 0.0, seed: int = 0
) -> BalancePlan:
    """Similarity-based migration of whole groups, then of single subscribers for what is left.

    A subscriber that moves alone leaves its subscriptions' incoming load behind with those who share them;
    a group takes it along.
    """
    labels = similar_groups(problem, _PER_SITE * problem.sites, seed)
    # A group moves as one, so its members must be at one site: the others form groups of their own.
    pieces, member = np.unique(labels * problem.sites + current, return_inverse=True)
    moved = sdm(_merged(problem, member, len(pieces)), pieces % problem.sites, alpha=alpha, beta=beta)
    singles = sdm(problem, moved.assignment[member], alpha=alpha, beta=beta)
    return report(problem, current, singles.assignment)


def group_shuffle(problem: BalanceProblem, seed: int = 0) -> Ints:
    """Reassign groups, heaviest first, each to the site whose load is least with it."""
    labels = similar_groups(problem, _PER_SITE * problem.sites, seed)
    groups = _merged(problem, labels, int(labels.max()) + 1)
    missing = np.tile(problem.rates, (problem.sites, 1))
    load = np.zeros(problem.sites)
    site = np.zeros(groups.subscribers, dtype=np.int64)
    for group in np.argsort(-groups.outgoing, kind="stable"):
        row = slice(groups.subscriptions.indptr[group], groups.subscriptions.indptr[group + 1])
        subscriptions = groups.subscriptions.indices[row]
        after = load + groups.outgoing[group] + missing[:, subscriptions].sum(axis=1)
        to = int(after.argmin())
        load[to], site[group] = after[to], to
        missing[to, subscriptions] = 0.0
    return site[labels]


def similar_groups(problem: BalanceProblem, count: int, seed: int) -> Ints:
    """At most `count` groups of subscribers with similar subscriptions, heavy subscriptions counting more."""
    largest = float(problem.rates.max(initial=0.0)) or 1.0
    weighted = csr_array(problem.subscriptions * np.sqrt(problem.rates / largest)[None, :])
    place = _principal_places(weighted)
    length = np.linalg.norm(place, axis=1, keepdims=True)
    # Rounded, so that equal subscribers are equal and more clusters than places are never asked for.
    place = np.round(place / np.where(length > 1e-9, length, 1.0), 6)
    clusters = min(count, len(np.unique(place, axis=0)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "One of the clusters is empty")  # fewer groups are fine
        labels = kmeans2(place, clusters, iter=20, minit="++", rng=np.random.default_rng(seed))[1]
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _principal_places(weighted: csr_array) -> Floats:
    """Subscribers in the few dimensions in which they differ most."""
    smaller = min(weighted.shape)
    if smaller <= 2 * _DIMENSIONS:
        left, scale, _ = np.linalg.svd(weighted.toarray(), full_matrices=False)
        return np.asarray((left * scale)[:, :_DIMENSIONS])
    left, scale, _ = svds(weighted, k=_DIMENSIONS, v0=np.random.default_rng(0).random(smaller))
    return np.asarray(left * scale)


def _merged(problem: BalanceProblem, member: Ints, groups: int) -> BalanceProblem:
    """The problem in which each group is one subscriber."""
    once = np.ones(len(member), dtype=np.int32)
    membership = csr_array((once, (member, np.arange(len(member)))), shape=(groups, len(member)))
    return BalanceProblem(csr_array(membership @ problem.subscriptions), problem.rates, problem.sites)
