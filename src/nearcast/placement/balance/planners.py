"""The paper's three stages: a site for a new subscriber, migration (LDM, SDM), shuffle (GSH), and Algorithm 1."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.spatial import KDTree

from nearcast.placement.balance.incremental_load import IncrementalLoad
from nearcast.placement.balance.problem import BalancePlan, BalanceProblem, cov, loads, report
from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.progress import Advance

__all__ = [
    "Scheme",
    "Thresholds",
    "gsh",
    "ldm",
    "migration_moves",
    "nearest",
    "random",
    "round_robin",
    "sdm",
    "staged",
]

Scheme = Literal["ldm", "sdm"]
_REPORT_EVERY = 4096


@dataclass(frozen=True)
class Thresholds:
    """Migrate while cov > α and μ > β; shuffle first when cov > γ and μ > θ. Loads in the rates' unit."""

    alpha: float = 0.05
    beta: float = 0.0
    gamma: float = 0.5
    theta: float = 0.0


DEFAULT = Thresholds()


def nearest(subscribers: Floats, sites: Floats) -> Ints:
    """Stage 1 (Section 5.1), NR: the closest site, for positions in one row each, of any number of dimensions."""
    return np.asarray(KDTree(sites).query(subscribers)[1], dtype=np.int64)


def round_robin(subscribers: int, sites: int) -> Ints:
    """Stage 1, RR: the same number of subscribers at every site."""
    return np.arange(subscribers) % sites


def random(subscribers: int, sites: int, seed: int) -> Ints:
    """Stage 1, RND: any site."""
    return np.random.default_rng(seed).integers(sites, size=subscribers)


def ldm(problem: BalanceProblem, current: Ints, *, alpha: float = 0.0, beta: float = 0.0) -> BalancePlan:
    """Stage 2, load-based migration: the heaviest subscriber that may, to the least loaded site.

    Goes on while cov > α and μ > β, and ends when no valid move is left.
    """
    return _migrate(problem, current, "ldm", alpha, beta)


def sdm(problem: BalanceProblem, current: Ints, *, alpha: float = 0.0, beta: float = 0.0) -> BalancePlan:
    """Stage 2, similarity-based migration: to the site below the mean load that shares most with the subscriber."""
    return _migrate(problem, current, "sdm", alpha, beta)


def gsh(problem: BalanceProblem, current: Ints, advance: Advance = no_progress) -> BalancePlan:
    """Stage 3 (Section 5.3), greedy shuffle: heaviest subscriber first, each to the least loaded site (Eq. 5)."""
    assignment = np.empty(problem.subscribers, dtype=np.int64)
    indptr, indices = problem.subscriptions.indptr, problem.subscriptions.indices
    outgoing = problem.outgoing.tolist()
    missing = [problem.rates.copy() for _ in range(problem.sites)]  # λ_k where z_jk = 0
    lightest = [(0.0, site) for site in range(problem.sites)]  # a heap, so in order already
    for done, subscriber in enumerate(np.argsort(-problem.outgoing, kind="stable").tolist()):
        load, site = lightest[0]
        subscriptions = indices[indptr[subscriber] : indptr[subscriber + 1]]
        to_fetch = missing[site]
        load += outgoing[subscriber] + float(np.add.reduce(to_fetch[subscriptions]))
        to_fetch[subscriptions] = 0.0
        heapq.heapreplace(lightest, (load, site))
        assignment[subscriber] = site
        if done % _REPORT_EVERY == 0:
            advance(done / problem.subscribers)
    return report(problem, current, assignment)


def staged(
    problem: BalanceProblem, current: Ints, thresholds: Thresholds = DEFAULT, scheme: Scheme = "ldm"
) -> BalancePlan:
    """Both later stages in one plan; a subscriber appears in it once, with its last site."""
    assignment, load = current, loads(problem, current)
    if cov(load) > thresholds.gamma and load.mean() > thresholds.theta:
        assignment = gsh(problem, current).assignment
    migrate = ldm if scheme == "ldm" else sdm
    migrated = migrate(problem, assignment, alpha=thresholds.alpha, beta=thresholds.beta)
    return report(problem, current, migrated.assignment)


def migration_moves(
    problem: BalanceProblem, current: Ints, scheme: Scheme, *, alpha: float = 0.0, beta: float = 0.0
) -> Iterator[tuple[int, int, float]]:
    """Algorithm 1, lines 6-24, one move at a time: the subscriber, its new site, and the maximum load then."""
    state = IncrementalLoad(problem, current)
    while cov(state.load) > alpha and state.load.mean() > beta:
        destinations = np.array([state.load.argmin()]) if scheme == "ldm" else _below_mean(state.load)
        move = _first_valid(state, destinations)
        if move is None:
            return
        state.move(*move)
        yield int(state.order[move[0]]), move[1], float(state.load.max())


def _migrate(problem: BalanceProblem, current: Ints, scheme: Scheme, alpha: float, beta: float) -> BalancePlan:
    assignment = current.copy()
    for subscriber, site, _ in migration_moves(problem, current, scheme, alpha=alpha, beta=beta):
        assignment[subscriber] = site
    return report(problem, current, assignment)


def _below_mean(load: Floats) -> Ints:
    lightest_first = np.argsort(load, kind="stable")
    return np.asarray(lightest_first[load[lightest_first] < load.mean()])


def _first_valid(state: IncrementalLoad, destinations: Ints) -> tuple[int, int] | None:
    """The heaviest subscriber of the most loaded site whose move is valid, and where it goes (lines 7-17).

    It goes where it shares most, which is where it adds least; of equals, to the first of `destinations`.
    """
    source = int(state.load.argmax())
    if not len(destinations) or source in destinations:
        return None
    # Whoever is sent more than the widest gap makes any destination heavier than the source was.
    low = state.first_not_above(float(state.load[source] - state.load[destinations].min()) + state.tiny)
    for ranks in state.ranks_at(source, low):
        incoming = state.incoming(ranks, destinations)
        best = incoming.argmin(axis=0)
        to = destinations[best]
        after = state.load[to] + state.outgoing[ranks] + incoming.min(axis=0)
        for i in np.flatnonzero(after <= state.load[source] + state.tiny):
            if _progresses(state, int(ranks[i]), int(to[i]), float(after[i])):
                return int(ranks[i]), int(to[i])
    return None


def _progresses(state: IncrementalLoad, rank: int, to: int, after: float) -> bool:
    """Valid allows the destination to become as heavy as the source was; then the other must get lighter.

    Without this the two could pass a subscriber back and forth forever.
    """
    source = float(state.load[state.site[rank]])
    return after < source - state.tiny or source - state.relief(rank) < state.load[to] - state.tiny
