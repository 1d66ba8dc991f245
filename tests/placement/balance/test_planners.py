"""Loads, migration, shuffle and the staged algorithm against the literal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.balance import literal

from nearcast.placement import balance
from nearcast.placement.balance import relief
from nearcast.placement.balance.incremental_load import IncrementalLoad

if TYPE_CHECKING:
    from numpy.typing import NDArray


def test_an_example_by_hand() -> None:
    # Two subscribers share s0 (rate 5) at site 0; one has s1 (rate 2) at site 1.
    problem = balance.from_pairs(np.array([0, 1, 2]), np.array([0, 0, 1]), np.array([5.0, 2.0]), subscribers=3, sites=2)
    load = balance.loads(problem, np.array([0, 0, 1]))
    assert load.tolist() == [5 * (1 + 2), 2 * (1 + 1)]
    # Moving one of two sharers does not lower the source's incoming load.
    assert balance.loads(problem, np.array([0, 1, 1])).tolist() == [10, 14]
    assert balance.cov(np.array([15.0, 4.0])) == pytest.approx(5.5 / 9.5)


@given(literal.problems(), st.integers(0, 2**16))
def test_loads_and_cov(problem: balance.BalanceProblem, seed: int) -> None:
    assignment = literal.anywhere(problem, seed)
    expected = literal.loads(problem, assignment.tolist())
    np.testing.assert_allclose(balance.loads(problem, assignment), expected)
    assert balance.cov(np.array(expected)) == pytest.approx(literal.cov(expected))


@given(literal.problems(), st.integers(0, 2**16))
def test_incremental_loads_equal_full_recomputation(problem: balance.BalanceProblem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = IncrementalLoad(problem, literal.anywhere(problem, seed))
    for _ in range(5):
        rank, to = int(rng.integers(problem.subscribers)), int(rng.integers(problem.sites))
        if state.site[rank] == to:
            continue
        source, before = state.site[rank], state.load.copy()
        relief = state.relief(rank)
        if rank < state.active:
            added = state.outgoing[rank] + state.incoming(np.array([rank]), np.array([to]))[0, 0]
            state.move(rank, to)
            assert state.load[to] == pytest.approx(before[to] + added)
        else:
            state.move(rank, to)
        assert state.load[source] == pytest.approx(before[source] - relief)
        np.testing.assert_allclose(state.load, balance.loads(problem, state.assignment()), atol=1e-9)


@given(literal.problems(), st.integers(0, 2**16))
def test_many_moves_at_once_equal_single_moves(problem: balance.BalanceProblem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    together, single = (IncrementalLoad(problem, literal.anywhere(problem, seed)) for _ in range(2))
    ranks = rng.permutation(problem.subscribers)[: rng.integers(1, problem.subscribers + 1)]
    to = rng.integers(problem.sites, size=len(ranks))
    together.move_many(ranks, to)
    for rank, site in zip(ranks.tolist(), to.tolist(), strict=True):
        single.move(rank, site)
    np.testing.assert_array_equal(together.assignment(), single.assignment())
    np.testing.assert_array_equal(together.attached, single.attached)
    np.testing.assert_array_equal(together.missing, single.missing)
    np.testing.assert_allclose(together.load, balance.loads(problem, together.assignment()), atol=1e-9)
    assert all(together.heaviest[site] <= rank for site, rank in zip(to, ranks, strict=True))


def test_refined_in_batches_is_as_good_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    pairs = np.unique(rng.integers(2000 * 40, size=16_000))
    rates = rng.uniform(1, 3, size=40)
    problem = balance.from_pairs(pairs // 40, pairs % 40, rates, subscribers=2000, sites=4)
    current = rng.choice(4, size=2000, p=[0.7, 0.1, 0.1, 0.1])
    batches = 0
    move_many = IncrementalLoad.move_many

    def counted(self: IncrementalLoad, ranks: NDArray[np.int64], to: NDArray[np.int64]) -> None:
        nonlocal batches
        batches += 1
        move_many(self, ranks, to)

    monkeypatch.setattr(IncrementalLoad, "move_many", counted)
    together = balance.refined(problem, current)
    assert batches > 0
    monkeypatch.setattr(relief, "_LEAST_BATCH", problem.subscribers)
    single = balance.refined(problem, current)
    goal = 1.0001 * balance.gsh(problem, current).max_load
    assert max(together.max_load, single.max_load) <= goal
    assert together.moves <= 1.01 * single.moves


@settings(max_examples=30)
@given(literal.problems(largest=8), st.integers(0, 2**16), st.sampled_from([0.0, 0.1, 0.4]))
def test_migration_equals_algorithm_1(problem: balance.BalanceProblem, seed: int, alpha: float) -> None:
    current = literal.anywhere(problem, seed)
    for scheme, migrate in {"ldm": balance.ldm, "sdm": balance.sdm}.items():
        expected = literal.migrate(problem, current.tolist(), scheme, alpha)
        assert migrate(problem, current, alpha=alpha).assignment.tolist() == expected, scheme


@settings(max_examples=30)
@given(literal.problems())
def test_shuffle_equals_the_literal_one(problem: balance.BalanceProblem) -> None:
    plan = balance.gsh(problem, np.zeros(problem.subscribers, dtype=int))
    assert plan.assignment.tolist() == literal.shuffle(problem)


@settings(max_examples=30)
@given(literal.problems(largest=6), st.integers(0, 2**16))
def test_the_lower_bound_is_below_the_optimum(problem: balance.BalanceProblem, seed: int) -> None:
    if problem.sites**problem.subscribers <= 256:
        assert balance.lower_bound(problem) <= literal.best_maximum(problem) * (1 + 1e-9)


def level_instance(seed: int, sites: int = 4) -> tuple[balance.BalanceProblem, np.ndarray]:
    """Many subscribers, few subscriptions, a skewed current assignment: nobody dominates."""
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers((0, 0), (3000, 20), size=(24_000, 2)), axis=0)
    rates = rng.normal(10, 2, size=20)
    problem = balance.from_pairs(pairs[:, 0], pairs[:, 1], rates, subscribers=3000, sites=sites)
    return problem, rng.choice(sites, size=3000, p=rng.dirichlet(np.ones(sites)))


@pytest.mark.parametrize("seed", range(3))
def test_maximum_load_is_within_one_percent_of_the_bound_when_nobody_dominates(seed: int) -> None:
    problem, current = level_instance(seed)
    bound = balance.lower_bound(problem)
    assert balance.gsh(problem, current).max_load <= 1.01 * bound
    assert balance.refined(problem, current).max_load <= 1.01 * bound


@pytest.mark.parametrize("seed", range(3))
def test_refined_reaches_the_shuffles_maximum_with_fewer_moves(seed: int) -> None:
    problem, current = level_instance(seed)
    shuffled, refined = balance.gsh(problem, current), balance.refined(problem, current)
    migrated = balance.ldm(problem, current)
    assert refined.max_load <= shuffled.max_load * 1.0001
    assert refined.moves < migrated.moves < shuffled.moves


def test_refined_leaves_a_level_assignment_alone() -> None:
    problem, current = level_instance(0)
    level = balance.gsh(problem, current).assignment
    assert balance.refined(problem, level).moves == 0


def test_groups_keep_shared_subscriptions_together() -> None:
    # Forty communities, each with ten subscriptions of its own; round robin scatters them.
    rng = np.random.default_rng(1)
    community = rng.integers(40, size=1200)
    chosen = np.stack([rng.permuted(np.arange(10))[:4] for _ in community])
    subscription = (community[:, None] * 10 + chosen).ravel()
    problem = balance.from_pairs(
        np.repeat(np.arange(1200), 4), subscription, np.full(400, 3.0), subscribers=1200, sites=4
    )
    skewed = rng.choice(4, size=1200, p=[0.55, 0.15, 0.15, 0.15])
    singly, in_groups = balance.sdm(problem, skewed), balance.grouped(problem, skewed)
    assert in_groups.loads.sum() < singly.loads.sum()
    assert in_groups.max_load < singly.max_load
    assert balance.refined(problem, skewed).max_load < 0.95 * balance.gsh(problem, skewed).max_load


def test_groups_are_alike() -> None:
    # Two kinds of subscriber with nothing in common.
    subscriber = np.repeat(np.arange(20), 3)
    subscription = np.tile([[0, 1, 2], [3, 4, 5]], (10, 1)).ravel()
    problem = balance.from_pairs(subscriber, subscription, np.ones(6), subscribers=20, sites=2)
    labels = balance.similar_groups(problem, 8, seed=0)
    assert len(set(labels[::2].tolist())) == len(set(labels[1::2].tolist())) == 1
    assert labels[0] != labels[1]


class TestStaged:
    """Algorithm 1 with its four thresholds."""

    def setup_method(self) -> None:
        self.problem, _ = level_instance(4)
        self.current = np.zeros(3000, dtype=int)  # cov is √3: extreme

    def test_extreme_imbalance_is_shuffled(self) -> None:
        plan = balance.staged(self.problem, self.current, balance.Thresholds(gamma=0.5))
        assert plan.assignment.tolist() == balance.gsh(self.problem, self.current).assignment.tolist()

    def test_less_is_migrated(self) -> None:
        plan = balance.staged(self.problem, self.current, balance.Thresholds(alpha=0.1, gamma=2.0))
        assert plan.assignment.tolist() == balance.ldm(self.problem, self.current, alpha=0.1).assignment.tolist()
        assert balance.cov(plan.loads) <= 0.1

    def test_the_scheme_may_be_similarity(self) -> None:
        plan = balance.staged(self.problem, self.current, balance.Thresholds(gamma=2.0), "sdm")
        assert plan.assignment.tolist() == balance.sdm(self.problem, self.current, alpha=0.05).assignment.tolist()

    def test_a_system_with_little_load_is_left_alone(self) -> None:
        idle = balance.Thresholds(beta=1e9, theta=1e9)
        assert balance.staged(self.problem, self.current, idle).moves == 0

    def test_a_smaller_alpha_costs_more_moves(self) -> None:
        moves = [balance.ldm(self.problem, self.current, alpha=a).moves for a in (0.5, 0.15, 0.05)]
        assert moves == sorted(moves)
        assert moves[0] < moves[-1]


def test_initial_placements() -> None:
    assert balance.round_robin(5, 2).tolist() == [0, 1, 0, 1, 0]
    sites = np.array([[0.0, 0.0], [10.0, 0.0]])
    assert balance.nearest(np.array([[1.0, 3.0], [6.0, 0.0]]), sites).tolist() == [0, 1]
    random = balance.random(1000, 4, seed=3)
    assert random.tolist() == balance.random(1000, 4, seed=3).tolist()
    assert np.bincount(random).min() > 200
