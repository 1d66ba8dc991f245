"""The plans that trade moves against the maximum load: none of the paper's methods beats them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.balance import literal

from nearcast.placement import balance
from nearcast.placement.balance.migration_path import migration_path


def channel_instance(seed: int, subscribers: int = 800) -> tuple[balance.BalanceProblem, np.ndarray]:
    """Section 6.2.1 in small: rates that differ by the period of the channel (5 to 60 s)."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(subscribers), rng.integers(10, 31, size=subscribers))
    pairs = np.unique(who * 200 + rng.integers(200, size=len(who)))
    rates = np.maximum(rng.normal(10, 3, 200), 0.1) / np.repeat([5, 10, 20, 30, 60], 40)
    problem = balance.from_pairs(pairs // 200, pairs % 200, rates, subscribers=subscribers, sites=10)
    return problem, rng.choice(10, size=subscribers, p=rng.dirichlet(np.full(10, 2.0)))


@pytest.mark.parametrize("seed", range(2))
def test_refined_is_within_a_thousandth_of_the_shuffle_with_no_more_moves_than_ldm(seed: int) -> None:
    problem, current = channel_instance(seed)
    refined, shuffled = balance.refined(problem, current), balance.gsh(problem, current)
    assert refined.max_load <= 1.002 * shuffled.max_load
    assert refined.moves < balance.ldm(problem, current).moves < shuffled.moves
    close = balance.ldm(problem, current, alpha=0.01)
    assert balance.refined(problem, current, moves_at_most=close.moves).max_load <= close.max_load


@settings(max_examples=40)
@given(literal.problems(), st.integers(0, 2**16), st.sampled_from([0.0, 0.1, 0.4]))
def test_no_method_has_a_lower_maximum_with_as_many_moves(
    problem: balance.BalanceProblem, seed: int, alpha: float
) -> None:
    current = literal.anywhere(problem, seed)
    others = {
        "ldm": balance.ldm(problem, current, alpha=alpha),
        "sdm": balance.sdm(problem, current, alpha=alpha),
        "gsh": balance.gsh(problem, current),
    }
    for name, other in others.items():
        capped = balance.refined(problem, current, moves_at_most=other.moves, move_price=0.0)
        assert capped.moves <= other.moves, name
        assert capped.max_load <= other.max_load * (1 + 1e-9), name


@given(literal.problems(), st.integers(0, 2**16), st.integers(0, 10))
def test_the_cap_on_moves_is_kept_and_the_maximum_never_rises(
    problem: balance.BalanceProblem, seed: int, most: int
) -> None:
    current = literal.anywhere(problem, seed)
    plan = balance.refined(problem, current, moves_at_most=most)
    assert plan.moves <= most
    assert plan.max_load <= plan.loads_before.max() * (1 + 1e-9)
    assert plan.max_load == pytest.approx(max(literal.loads(problem, plan.assignment.tolist())))


@given(literal.problems(), st.integers(0, 2**16))
def test_a_trade_off_has_no_beaten_plan(problem: balance.BalanceProblem, seed: int) -> None:
    plans = balance.trade_off(problem, literal.anywhere(problem, seed))
    assert plans[0].moves == 0
    for fewer, more in pairwise(plans):
        assert fewer.moves < more.moves
        assert fewer.max_load > more.max_load


@given(literal.problems(), st.integers(0, 2**16), st.sampled_from(["ldm", "sdm"]))
def test_every_prefix_of_a_migration_is_what_it_says(problem: balance.BalanceProblem, seed: int, scheme: str) -> None:
    current = literal.anywhere(problem, seed)
    path = migration_path(problem, current, scheme)  # type: ignore[arg-type]
    for length in range(len(path.subscriber) + 1):
        plan = balance.report(problem, current, path.assignment(length))
        assert plan.moves == path.away[length]
        assert plan.max_load == pytest.approx(path.maximum[length])


def test_rates_near_the_largest_float() -> None:
    subscriber, subscription = np.arange(12), np.arange(12) % 5
    small = balance.from_pairs(subscriber, subscription, np.arange(1.0, 6.0), subscribers=12, sites=3)
    large = balance.from_pairs(subscriber, subscription, 1e300 * np.arange(1.0, 6.0), subscribers=12, sites=3)
    current = np.zeros(12, dtype=np.int64)
    assert balance.lower_bound(large) == pytest.approx(1e300 * balance.lower_bound(small))
    assert balance.cov(balance.loads(large, current)) == pytest.approx(balance.cov(balance.loads(small, current)))
    for plan in (balance.ldm, balance.sdm, balance.gsh, balance.staged, balance.grouped, balance.refined):
        found, expected = plan(large, current), plan(small, current)
        assert found.max_load == pytest.approx(1e300 * expected.max_load), plan.__name__


def test_a_subscriber_without_a_site_is_placed_and_not_moved() -> None:
    problem = balance.from_pairs(np.arange(3), np.zeros(3, int), np.array([2.0]), subscribers=3, sites=2)
    plan = balance.report(problem, np.array([0, balance.NOWHERE, 1]), np.array([1, 1, 1]))
    assert plan.moved.tolist() == [0]
    assert plan.loads_before.tolist() == [4.0, 4.0]
