"""The exact solver finds the optimum, and `refined` comes within three per cent of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from tests.placement.homes.strategies import instances

from nearcast import InputError, NearcastError
from nearcast.lab.workloads.city import CityParameters, city, random_members
from nearcast.placement.homes import HomesProblem, evaluate, exact, refined


def tight_city(seed: int, clients: int = 9, topics: int = 4) -> HomesProblem:
    """Three sites that hold about half of what would be asked of them if everybody went to the nearest."""
    members = random_members(topics, clients, seed, sizes=(3, 5))
    return city(members, CityParameters(sites=3, spread_km=8, storage=14, compute=40), seed)


@settings(max_examples=12)
@given(instances(clients=5))
def test_exact_is_the_best_of_all_assignments(problem: HomesProblem) -> None:
    everything = itertools.product(range(problem.sites), repeat=problem.clients)
    best = min(evaluate(problem, np.array(home)).delay_ms for home in everything)
    assert exact(problem).delay_ms == pytest.approx(best, abs=1e-9)


def test_refined_is_within_three_per_cent_of_exact() -> None:
    for seed in range(5):
        problem = tight_city(seed)
        assert refined(problem).delay_ms <= 1.03 * exact(problem).delay_ms


def test_fractions_of_storage_are_not_rounded_away() -> None:
    """0.3 + 0.3 does not fit 0.5: the two topics must not share a site."""
    both = np.eye(2)
    problem = HomesProblem(
        np.array([[0.0, 0.1], [0.0, 0.1]]),
        np.array([[0.0, 0.1], [0.1, 0.0]]),
        50.0,
        np.array([0.5, 0.5]),
        np.array([9.0, 9.0]),
        np.array([0.3, 0.3]),
        both,
        1 - both,
    )
    assert sorted(exact(problem).home.tolist()) == [0, 1]


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(InputError, match="too many for the exact solver; at most 100"):
        exact(city(random_members(4, 40, seed=0)))


def test_no_proof_in_time_is_said() -> None:
    with pytest.raises(NearcastError, match="not proven within"):
        exact(tight_city(0, clients=20, topics=10), seconds=0.01)
