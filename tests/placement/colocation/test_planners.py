"""The co-location planners: the shared contract, the paper's algorithms by the letter, the optimum."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.colocation.models import K, literal_feasible, made_up, wild_model
from tests.placement.contract import PlannerContract

from nearcast import InputError
from nearcast.placement.colocation.exact import exact, lower_bound
from nearcast.placement.colocation.mixed import mixed
from nearcast.placement.colocation.planners import as_plan, ffd, hybrid, lfs, matching, slowest_first
from nearcast.placement.colocation.problem import (
    ColocationPlan,
    ColocationTopics,
    Feasibility,
    InfeasibleTopicError,
    feasibility,
)
from nearcast.placement.colocation.refined import refine, refined

if TYPE_CHECKING:
    from collections.abc import Callable

instances = st.builds(made_up, st.integers(0, 400), st.integers(1, 8))


def sets_of(plan: ColocationPlan) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(plan.worker == b).tolist()) for b in np.unique(plan.worker)}


class TestContract(PlannerContract):
    instances = instances
    planners = {  # noqa: RUF012
        "ffd": lambda possible, seed: ffd(possible, K),
        "lfs": lambda possible, seed: lfs(possible, K),
        "hybrid": lambda possible, seed: hybrid(possible, K, 2 + seed % 2),
        "mixed": lambda possible, seed: as_plan(possible, mixed(possible, K)),
        "refined": lambda possible, seed: refined(possible, K),
    }

    def exact(self, possible: Feasibility) -> ColocationPlan:
        return exact(possible, K)

    def refine(self, possible: Feasibility, start: ColocationPlan, seed: int) -> ColocationPlan:
        return refine(possible, K, start)

    def assignment(self, result: ColocationPlan) -> list[int]:
        return result.worker.tolist()

    def check_placed(self, possible: Feasibility, result: ColocationPlan) -> None:
        assert (result.worker >= 0).all()
        assert len(result.worker) == len(possible.topics)

    def check_capacity(self, possible: Feasibility, result: ColocationPlan) -> None:
        assert result.violations == 0
        for topics in sets_of(result):
            assert len(topics) <= K
            assert literal_feasible(possible, sorted(topics))

    def objective(self, possible: Feasibility, result: ColocationPlan) -> float:
        return len(set(result.worker.tolist()))

    def reported(self, result: ColocationPlan) -> float:
        return result.workers


def literal_ffd(possible: Feasibility, k: int) -> set[frozenset[int]]:
    """Algorithm 1, line by line."""
    workers: list[list[int]] = []
    for topic in slowest_first(possible).tolist():
        for worker in workers:
            if len(worker) < k and literal_feasible(possible, [*worker, topic]):
                worker.append(topic)
                break
        else:
            workers.append([topic])
    return {frozenset(b) for b in workers}


def first_set(possible: Feasibility, waiting: list[int], size: int) -> list[int] | None:
    return next((list(c) for c in combinations(waiting, size) if literal_feasible(possible, list(c))), None)


def literal_lfs(possible: Feasibility, waiting: list[int], k: int) -> tuple[set[frozenset[int]], int]:
    """Algorithm 2, all subsets enumerated: the sets of three or more, and how many topics are left."""
    workers = set()
    for size in range(k, 2, -1):
        while (found := first_set(possible, waiting, size)) is not None:
            workers.add(frozenset(found))
            waiting = [t for t in waiting if t not in found]
    return workers, len(waiting)


def literal_hybrid(possible: Feasibility, k: int, seed_size: int) -> set[frozenset[int]]:
    """Algorithm 3, lines 1 to 17: the workers that start with a set of k' topics."""
    waiting = slowest_first(possible).tolist()
    workers = set()
    while (worker := first_set(possible, waiting, seed_size)) is not None:
        for topic in [t for t in waiting if t not in worker]:
            if len(worker) == k:
                break
            if literal_feasible(possible, [*worker, topic]):
                worker.append(topic)
        waiting = [t for t in waiting if t not in worker]
        workers.add(frozenset(worker))
    return workers


@given(instances)
@settings(max_examples=40)
def test_ffd_is_algorithm_1(possible: Feasibility) -> None:
    assert sets_of(ffd(possible, K)) == literal_ffd(possible, K)


@given(instances)
@settings(max_examples=40)
def test_lfs_is_algorithm_2(possible: Feasibility) -> None:
    large, left = literal_lfs(possible, slowest_first(possible).tolist(), K)
    found = sets_of(lfs(possible, K))
    assert {s for s in found if len(s) > 2} == large
    assert sum(len(s) for s in found if len(s) <= 2) == left


@given(instances, st.sampled_from([2, 3]))
@settings(max_examples=40)
def test_hybrid_is_algorithm_3(possible: Feasibility, seed_size: int) -> None:
    assert literal_hybrid(possible, K, seed_size) <= sets_of(hybrid(possible, K, seed_size))


@given(instances)
@settings(max_examples=20)
def test_hybrid_becomes_ffd_and_lfs_at_its_ends(possible: Feasibility) -> None:
    assert sets_of(hybrid(possible, K, 1)) == sets_of(ffd(possible, K))
    assert sets_of(hybrid(possible, K, K)) == sets_of(lfs(possible, K))


@given(instances)
@settings(max_examples=20)
def test_theorem_1_matching_is_the_optimum_for_pairs(possible: Feasibility) -> None:
    assert matching(possible).workers == exact(possible, 2).workers
    assert lfs(possible, 2).workers == exact(possible, 2).workers
    assert ffd(possible, 1).workers == exact(possible, 1).workers == len(possible.topics)


@given(st.builds(made_up, st.integers(0, 400), st.integers(1, 6)))
@settings(max_examples=25)
def test_exact_is_the_optimum_over_all_partitions(possible: Feasibility) -> None:
    def fewest(waiting: list[int]) -> int:
        if not waiting:
            return 0
        first, rest = waiting[0], waiting[1:]
        groups = ((first, *c) for size in range(min(K, len(waiting))) for c in combinations(rest, size))
        return min(1 + fewest([t for t in rest if t not in g]) for g in groups if literal_feasible(possible, list(g)))

    assert exact(possible, K).workers == fewest(list(range(len(possible.topics))))
    assert lower_bound(possible, K) <= exact(possible, K).workers


def topic(rate: float, processing_ms: float, bound_ms: float) -> ColocationTopics:
    return ColocationTopics(np.array([rate]), np.array([processing_ms]), np.array([bound_ms]))


def test_a_topic_that_is_too_slow_alone_is_refused() -> None:
    with pytest.raises(InfeasibleTopicError, match="even alone on a worker, its bound is 20 ms"):
        feasibility(wild_model(0), topic(10, 30, 20), margin=0.1)
    with pytest.raises(InfeasibleTopicError, match=r"60/s of 20 ms each is more than one worker can process"):
        feasibility(wild_model(0), topic(60, 20, 1e6), margin=0.1)


@pytest.mark.parametrize("plan", [ffd, lfs, refined, exact])
def test_a_k_the_model_does_not_know_is_refused(plan: Callable[[Feasibility, int], ColocationPlan]) -> None:
    for k in (0, K + 1):
        with pytest.raises(InputError, match=f"k is {k}; the model was trained for 1 to {K} topics"):
            plan(made_up(1, 3), k)


def test_hybrid_refuses_a_seed_larger_than_k() -> None:
    with pytest.raises(InputError, match="k' is 4; it must be between 1 and k = 3"):
        hybrid(made_up(1, 3), 3, 4)


def test_exact_refuses_what_is_too_large() -> None:
    with pytest.raises(InputError, match="61 topics are too many for the exact planner"):
        exact(made_up(1, 61), K)
