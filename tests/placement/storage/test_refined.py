"""The local search: exact changes, and how far from the optimum it ends."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.storage.literal import problems, traffic

from nearcast.lab.workloads.content import random_tree, zipf_demand
from nearcast.placement import storage
from nearcast.placement.storage.refined import _StorageSearch


@settings(max_examples=25)
@given(problems(), st.integers(0, 2**16))
def test_tabulated_changes_equal_full_recomputation(problem: storage.StorageProblem, seed: int) -> None:
    plan = storage.random(problem, seed)
    search = _StorageSearch(problem, plan.stores, plan.placed[:, plan.stores])
    search.tabulate()
    before = traffic(problem, plan.placed)
    for row, changes in enumerate(search.change):
        for store, change in enumerate(changes):
            topic, source, to = search.topic[row], plan.stores[search.store[row]], plan.stores[store]
            if plan.placed[topic, to]:
                assert change == np.inf
                continue
            placed = plan.placed.copy()
            placed[topic, source], placed[topic, to] = False, True
            assert abs(change - (traffic(problem, placed) - before)) < 1e-9


@given(problems(), st.integers(0, 2**16))
def test_a_perturbation_keeps_every_replica_and_the_capacity(problem: storage.StorageProblem, seed: int) -> None:
    plan = storage.wrr(problem)
    perturbed = (
        _StorageSearch(problem, plan.stores, plan.placed[:, plan.stores]).perturbed(np.random.default_rng(seed)).plan()
    )
    np.testing.assert_array_equal(perturbed.placed.sum(axis=1), problem.replicas)
    assert (problem.sizes @ perturbed.placed <= problem.capacity + 1e-9).all()
    assert len(set(perturbed.stores.tolist())) == problem.stores


def test_refined_is_within_three_percent_of_the_optimum() -> None:
    gaps = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        network = random_tree(10, rng)
        demand = zipf_demand(network, 5, rng, locality_exponent=0.8 if seed % 2 else None) * rng.random((5, 10))
        problem = storage.StorageProblem(network, demand, 3, 4, rng.integers(1, 4, size=5).clip(max=2))
        best = storage.exact(problem).traffic
        gaps.append(storage.refined(problem, storage.wrr(problem), perturbations=20).traffic / best - 1)
    assert max(gaps) <= 0.03
    assert min(gaps) >= -1e-9


def test_exact_with_given_stores_only_assigns() -> None:
    rng = np.random.default_rng(3)
    network = random_tree(9, rng)
    demand = rng.integers(0, 9, size=(4, 9)).astype(float)
    problem = storage.StorageProblem(network, demand, 3, 2, np.array([2, 1, 1, 2]))
    plan = storage.wrr(problem)
    assigned = storage.exact(problem, plan.stores)
    assert assigned.stores.tolist() == plan.stores.tolist()
    assert storage.exact(problem).traffic <= assigned.traffic <= plan.traffic


@settings(max_examples=25)
@given(problems(), st.sampled_from([0.0, 0.3]), st.booleans())
def test_free_degrees_and_failures_keep_minimum_capacity_and_stores(
    problem: storage.StorageProblem, failure: float, keep_stores: bool
) -> None:
    start = storage.wrr(problem)
    plan = storage.refined(problem, start, failure=failure, min_replicas=1, keep_stores=keep_stores)
    assert (problem.sizes @ plan.placed <= problem.capacity + 1e-9).all()
    assert plan.placed.any(axis=1).all()
    assert plan.placed.sum(axis=1).max() <= problem.stores
    assert not np.delete(plan.placed, plan.stores, axis=1).any()
    if keep_stores:
        assert plan.stores.tolist() == start.stores.tolist()
    if not failure:
        assert traffic(problem, plan.placed) <= start.traffic * (1 + 1e-9)
    again = storage.reassign(problem, start.stores, "wrr", current=plan.placed if keep_stores else None)
    assert again.traffic <= start.traffic * (1 + 1e-9)
