"""Sourlas et al., Section 5.3: choose M stores, then assign k_t replicas of every topic to them.

Steps 1-3 are the planning (`plan_stores`), step 4 is the assignment (`assign_sequential`, `assign_wrr`),
which can be repeated alone when demand has changed (`reassign`). `random` and `greedy_unconstrained` are
the paper's baselines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from nearcast.placement.progress import no_progress
from nearcast.placement.storage.greedy import modified_greedy
from nearcast.placement.storage.packing import StorePacking, pack_largest_first
from nearcast.placement.storage.problem import StoragePlan, StorageProblem, evaluate
from nearcast.placement.storage.replication import relative_weights, topic_weights, wrr_rounds

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.progress import Advance


__all__ = [
    "StoreChoice",
    "assign_sequential",
    "assign_wrr",
    "choose_stores",
    "greedy_unconstrained",
    "plan_stores",
    "random",
    "reassign",
    "sequential",
    "wrr",
]


@dataclass(frozen=True)
class StoreChoice:
    """The planning phase: s_t as `votes[t, i]`, Σ w_t·s_t as `weighted`, S as `stores`."""

    votes: Floats
    weighted: Floats
    stores: Ints


def sequential(problem: StorageProblem, advance: Advance = no_progress) -> StoragePlan:
    """Steps 1-4, topic after topic, the one with most requests first (p/s_seq)."""
    return assign_sequential(problem, plan_stores(problem, advance))


def wrr(problem: StorageProblem, advance: Advance = no_progress) -> StoragePlan:
    """Steps 1-3, then rounds in which each topic gets stores by its relative weight (p/s_wrr)."""
    return assign_wrr(problem, plan_stores(problem, advance))


def plan_stores(problem: StorageProblem, advance: Advance = no_progress) -> StoreChoice:
    """Steps 1-3: what every topic would choose, weighted by its share of the requests; the M best nodes."""
    votes = modified_greedy(problem.network, problem.demand, problem.replicas, problem.publication, advance)
    return choose_stores(votes, topic_weights(problem.demand), problem.stores)


def choose_stores(votes: Floats, weights: Floats, count: int) -> StoreChoice:
    """Steps 2 and 3: Σ w_t·s_t, and its `count` largest elements (the lower node where equal)."""
    weighted = weights @ votes
    return StoreChoice(votes, weighted, _largest_first(weighted)[:count])


def assign_sequential(problem: StorageProblem, planning: StoreChoice) -> StoragePlan:
    """Step 4: a topic takes its preferred stores with room, until it has k_t."""
    return _assign(problem, planning, [problem.replicas])


def assign_wrr(problem: StorageProblem, planning: StoreChoice) -> StoragePlan:
    """Section 5.5: the same in rounds of k_t^r stores, fairer to topics with few requests."""
    relative = relative_weights(problem.demand.sum(axis=1))
    return _assign(problem, planning, wrr_rounds(relative, problem.replicas))


def reassign(
    problem: StorageProblem, stores: Ints, method: Literal["sequential", "wrr"] = "wrr", advance: Advance = no_progress
) -> StoragePlan:
    """Section 6.2: demand has changed, the stores stay; step 1 and step 4 again."""
    planning = plan_stores(problem, advance)
    assign = assign_wrr if method == "wrr" else assign_sequential
    return assign(problem, StoreChoice(planning.votes, planning.weighted, stores))


def random(problem: StorageProblem, seed: int, advance: Advance = no_progress) -> StoragePlan:
    """Baseline rnd: stores chosen as if all topics were one, replicas at random where there is room."""
    total = problem.demand.sum(axis=0, keepdims=True)
    degree = np.array([problem.stores])
    votes = modified_greedy(problem.network, total, degree, problem.publication, advance)
    planning = choose_stores(votes, np.ones(1), problem.stores)
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(np.arange(problem.stores), (len(problem.demand), 1)), axis=1)
    preferred = np.zeros(problem.demand.shape)
    preferred[:, planning.stores] = shuffled
    return _assign(problem, StoreChoice(preferred, planning.weighted, planning.stores), [problem.replicas])


def greedy_unconstrained(problem: StorageProblem, advance: Advance = no_progress) -> StoragePlan:
    """Baseline grd_opt: every topic at its k_t preferred nodes of step 1, regardless of M and L."""
    votes = modified_greedy(problem.network, problem.demand, problem.replicas, problem.publication, advance)
    placed = np.zeros(problem.demand.shape, dtype=bool)
    for topic, count in enumerate(problem.replicas):
        placed[topic, _largest_first(votes[topic])[:count]] = True
    return evaluate(problem, np.flatnonzero(placed.any(axis=0)), placed)


def _assign(problem: StorageProblem, planning: StoreChoice, rounds: list[Ints]) -> StoragePlan:
    stores, packing = planning.stores, StorePacking(problem, planning.stores)
    # A topic without preferred stores left in S continues with those of the highest total votes.
    by_votes = stores[_largest_first(planning.weighted[stores])]
    preferred = [by_votes[_largest_first(votes)] for votes in planning.votes[:, by_votes]]
    popular_first = _largest_first(problem.demand.sum(axis=1))
    for portion in rounds:
        for topic in popular_first:
            for _ in range(portion[topic]):
                if not packing.put(topic, preferred[topic]):
                    return evaluate(problem, stores, pack_largest_first(problem, stores))
    return evaluate(problem, stores, packing.placed)


def _largest_first(values: Floats) -> Ints:
    # Values that differ by rounding only are equal: the lower position goes first.
    scale = np.abs(values).max() or 1.0
    return np.argsort(-np.round(values / scale, 12), kind="stable")
