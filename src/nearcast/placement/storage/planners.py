"""Sourlas et al., Section 5.3: choose M stores, then assign k_t replicas of every topic to them.

Steps 1-3 are the planning (`plan_stores`), step 4 is the assignment (`assign_sequential`, `assign_wrr`),
which can be repeated alone when demand has changed or stores are lost (`reassign`). `random` and
`greedy_unconstrained` are the paper's baselines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from nearcast.placement.progress import no_progress
from nearcast.placement.storage.greedy import modified_greedy
from nearcast.placement.storage.packing import StorePacking, pack_largest_first, restored
from nearcast.placement.storage.problem import StoragePlan, StorageProblem, evaluate
from nearcast.placement.storage.refined import refined
from nearcast.placement.storage.replication import relative_weights, topic_weights, wrr_rounds

if TYPE_CHECKING:
    from nearcast.placement.arrays import Bools, Floats, Ints
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
    return choose_stores(problem, votes, topic_weights(problem.demand))


def choose_stores(problem: StorageProblem, votes: Floats, weights: Floats) -> StoreChoice:
    """Steps 2 and 3: Σ w_t·s_t, and its M largest elements.

    Of nodes with equal votes the one farthest from the stores chosen so far is next: on a ring all are equal, and the
    lowest numbers would be neighbours. Without a store yet, it is the one nearest to all requests.
    """
    weighted = weights @ votes
    level = _levels(weighted)
    distance, requests = problem.network.distance, problem.demand.sum(axis=0)
    chosen: list[int] = []
    near = np.full(problem.network.nodes, np.inf)  # to the nearest store
    while len(chosen) < problem.stores:
        level[chosen[-1:]] = -1
        best = np.flatnonzero(level == level.max())
        if len(best) > 1:
            far = _levels(near[best] if chosen else -(distance[best] @ requests))
            best = best[far == far.max()]
        chosen.append(int(best[0]))
        np.minimum(near, distance[chosen[-1]], out=near)
    return StoreChoice(votes, weighted, np.array(chosen, dtype=np.int64))


def assign_sequential(problem: StorageProblem, planning: StoreChoice) -> StoragePlan:
    """Step 4: a topic takes its preferred stores with room, until it has k_t."""
    return _assign(problem, planning, [problem.replicas])


def assign_wrr(problem: StorageProblem, planning: StoreChoice) -> StoragePlan:
    """Section 5.5: the same in rounds of k_t^r stores, fairer to topics with few requests."""
    relative = relative_weights(problem.demand.sum(axis=1))
    return _assign(problem, planning, wrr_rounds(relative, problem.replicas))


def reassign(
    problem: StorageProblem,
    stores: Ints,
    method: Literal["sequential", "wrr", "refined"] = "wrr",
    advance: Advance = no_progress,
    current: Bools | None = None,
    *,
    min_replicas: int | None = None,
    failure: float = 0.0,
) -> StoragePlan:
    """Section 6.2: demand has changed or stores are lost, the others stay; step 1 and step 4 again.

    current: what the nodes held; what was elsewhere than at `stores` is lost. With new replicas for topics that have
    fewer than `min_replicas` (k_t if not given) it is kept when the new assignment is no better. `refined` searches
    on from the better of the two: see there for `min_replicas` and `failure`.
    """
    planning = plan_stores(problem, advance)
    assign = assign_sequential if method == "sequential" else assign_wrr
    plan = assign(problem, StoreChoice(planning.votes, planning.weighted, stores))
    least = problem.replicas if min_replicas is None else np.full_like(problem.replicas, min_replicas)
    held = None if current is None else restored(problem, stores, current, least)
    if held is not None and (kept := evaluate(problem, stores, held)).traffic <= plan.traffic:
        plan = kept
    if method == "refined":
        return refined(problem, plan, failure=failure, min_replicas=min_replicas, keep_stores=True)
    return plan


def random(problem: StorageProblem, seed: int, advance: Advance = no_progress) -> StoragePlan:
    """Baseline rnd: stores chosen as if all topics were one, replicas at random where there is room."""
    total = problem.demand.sum(axis=0, keepdims=True)
    degree = np.array([problem.stores])
    votes = modified_greedy(problem.network, total, degree, problem.publication, advance)
    planning = choose_stores(problem, votes, np.ones(1))
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
    by_votes = stores[_largest_first(planning.weighted[stores])]
    votes = _levels(planning.votes[:, by_votes])
    # Farther than any store: the first replica is then the one nearest to all requests of the topic.
    near = np.full(problem.demand.shape, 2 * problem.network.distance.max() + 1)
    popular_first = _largest_first(problem.demand.sum(axis=1))
    for portion in rounds:
        for topic in popular_first:
            for _ in range(portion[topic]):
                node = _next_store(problem, packing, topic, by_votes, votes[topic], near[topic])
                if node is None:
                    return evaluate(problem, stores, pack_largest_first(problem, stores))
                np.minimum(near[topic], problem.network.distance[node], out=near[topic])
    return evaluate(problem, stores, packing.placed)


def _next_store(
    problem: StorageProblem, packing: StorePacking, topic: int, stores: Ints, votes: Floats, near: Floats
) -> int | None:
    """Put the topic's next replica where it has most votes; of equals, where it saves most of what is still far.

    Equals are common: of topics asked for alike everywhere, all but the most popular find their favourites full.
    """
    fits = packing.fits(topic, stores)
    if not fits.any():
        return packing.put_by_exchange(topic, stores[np.argsort(-votes, kind="stable")])
    open_stores, level = stores[fits], votes[fits]
    best = open_stores[level == level.max()]
    if len(best) > 1:
        saved = np.maximum(near - problem.network.distance[best], 0.0) @ problem.demand[topic]
        best = best[_largest_first(saved)]
    packing.add(topic, int(best[0]))
    return int(best[0])


def _largest_first(values: Floats) -> Ints:
    return np.argsort(-_levels(values), kind="stable")


def _levels(values: Floats) -> Floats:
    """Values that differ by rounding only are made equal."""
    scale = np.abs(values).max(initial=0.0) or 1.0
    return np.asarray(np.round(values / scale, 12), dtype=np.float64)
