"""The paper's planners: T = {t_1 … t_n} topics, at most k on a worker, as few workers |B| as possible.

Each takes the feasibility function F (made for the topics) and k, and returns a plan. ColocationTopics are taken in
decreasing order of their latency alone, ℓ_1 ≥ ℓ_2 ≥ … ≥ ℓ_n; equal ones in the order given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError
from nearcast.placement.colocation.search import FirstSets, feasible_pairs, fill

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.placement.arrays import Ints
    from nearcast.placement.colocation.problem import ColocationPlan, Feasibility

__all__ = ["as_plan", "check_k", "ffd", "fill_in_order", "hybrid", "lfs", "matching", "slowest_first"]


def ffd(possible: Feasibility, k: int) -> ColocationPlan:
    """FFD_k, first fit decreasing (Algorithm 1): O(n |B|) predictions at most.

    Filled worker by worker instead of topic by topic: a topic goes to the first worker that takes it
    beside the topics before it in either case, and one worker can be asked about many topics at once.
    """
    check_k(possible, k)
    return as_plan(possible, fill_in_order(possible, slowest_first(possible), k))


def lfs(possible: Feasibility, k: int) -> ColocationPlan:
    """LFS_k, largest feasible set (Algorithm 2): sets of k topics while there are any, then k - 1, …,
    and a maximum matching for the pairs. O(n^k) predictions in the worst case, pruned."""
    check_k(possible, k)
    return as_plan(possible, _largest_sets(possible, slowest_first(possible), k))


def hybrid(possible: Feasibility, k: int, seed_size: int) -> ColocationPlan:
    """LFS_k' + FFD_k (Algorithm 3), k' = seed_size: start workers with a set of k' topics, fill them up first
    fit, and place the rest with LFS_{k'-1}. k' = 1 is FFD_k and k' = k is LFS_k."""
    check_k(possible, k)
    if not 1 <= seed_size <= k:
        raise InputError(f"k' is {seed_size}; it must be between 1 and k = {k}")
    if seed_size == 1:
        return ffd(possible, k)
    if seed_size == k:
        return lfs(possible, k)
    waiting = slowest_first(possible)
    seeds = FirstSets(possible, waiting, seed_size)
    workers = []
    while (seed := seeds.next()) is not None:
        waiting = waiting[~np.isin(waiting, seed)]
        worker = fill(possible, seed, waiting, k)
        waiting = waiting[~np.isin(waiting, worker)]
        seeds.remove(worker)
        workers.append(worker)
    return as_plan(possible, workers + _largest_sets(possible, waiting, seed_size - 1))


def matching(possible: Feasibility) -> ColocationPlan:
    """The optimum for k = 2 (Theorem 1): |B| = |T| - |M| for a maximum matching M of the feasible pairs."""
    check_k(possible, 2)
    return as_plan(possible, _matched(possible, slowest_first(possible)))


def check_k(possible: Feasibility, k: int) -> None:
    """Refuse a k the model was not trained for."""
    if not 1 <= k <= possible.model.k:
        raise InputError(f"k is {k}; the model was trained for 1 to {possible.model.k} topics on a worker")


def slowest_first(possible: Feasibility) -> Ints:
    """Topics in decreasing order of their latency alone."""
    return np.argsort(-possible.isolated, kind="stable")


def as_plan(possible: Feasibility, workers: Iterable[list[int]]) -> ColocationPlan:
    """Number the workers in the order they were started."""
    worker = np.full(len(possible.topics), -1)
    for number, topics in enumerate(workers):
        worker[topics] = number
    return possible.plan(worker)


def fill_in_order(possible: Feasibility, waiting: Ints, k: int) -> list[list[int]]:
    """Start a worker with the first topic that waits and fill it first fit, until none waits."""
    workers = []
    placed = np.zeros(len(possible.topics), dtype=bool)
    while len(waiting):
        worker = fill(possible, [int(waiting[0])], waiting[1:], k)
        placed[worker] = True
        waiting = waiting[~placed[waiting]]
        workers.append(worker)
    return workers


def _largest_sets(possible: Feasibility, waiting: Ints, k: int) -> list[list[int]]:
    workers = []
    for size in range(k, 2, -1):
        sets = FirstSets(possible, waiting, size)
        while (found := sets.next()) is not None:
            workers.append(found)
            sets.remove(found)
        waiting = waiting[sets.waiting]
    return workers + (_matched(possible, waiting) if k > 1 else [[int(topic)] for topic in waiting])


def _matched(possible: Feasibility, waiting: Ints) -> list[list[int]]:
    import rustworkx as rx

    graph = rx.PyGraph()
    graph.add_nodes_from(range(len(waiting)))
    one, other = np.nonzero(np.triu(feasible_pairs(possible, waiting)))
    graph.add_edges_from_no_data(list(zip(one.tolist(), other.tolist(), strict=True)))
    pairs = sorted(tuple(sorted(pair)) for pair in rx.max_weight_matching(graph, max_cardinality=True))
    alone = sorted(set(range(len(waiting))) - {node for pair in pairs for node in pair})
    return [[int(waiting[node]) for node in group] for group in (*pairs, *((node,) for node in alone))]
