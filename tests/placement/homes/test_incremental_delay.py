"""What a move is said to change is what it changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.placement.homes.strategies import instances

from nearcast.placement.homes import HomesProblem, evaluate
from nearcast.placement.homes.incremental_delay import IncrementalDelay


def total(problem: HomesProblem, home: np.ndarray) -> float:
    return evaluate(problem, home).delay_ms * problem.delay_weights.total


@given(instances(), st.integers(0, 2**16))
def test_every_change_is_that_of_a_full_recomputation(problem: HomesProblem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    homes = IncrementalDelay(problem, rng.integers(problem.sites, size=problem.clients))
    for _ in range(4):
        change, _ = homes.move_changes(np.arange(problem.clients))
        before = total(problem, homes.home)
        for client in range(problem.clients):
            for site in range(problem.sites):
                moved = homes.home.copy()
                moved[client] = site
                assert change[client, site] == pytest.approx(total(problem, moved) - before, abs=1e-9)
        homes.move(int(rng.integers(problem.clients)), int(rng.integers(problem.sites)))
        assert homes.total_ms() == pytest.approx(total(problem, homes.home), abs=1e-9)


@given(instances(), st.integers(0, 2**16))
def test_the_relaxed_change_is_that_of_a_site_with_room(problem: HomesProblem, seed: int) -> None:
    home = np.random.default_rng(seed).integers(problem.sites, size=problem.clients)
    change, relaxed = IncrementalDelay(problem, home).move_changes(np.arange(problem.clients))
    roomy = HomesProblem(
        problem.client_site_ms,
        problem.site_site_ms,
        problem.cloud_ms,
        problem.storage + 1000,
        problem.compute + 1000,
        problem.spool_size,
        problem.publications,
        problem.subscriptions,
    )
    in_room, in_room_relaxed = IncrementalDelay(roomy, home).move_changes(np.arange(problem.clients))
    np.testing.assert_allclose(in_room, in_room_relaxed, atol=1e-9)
    if problem.site_site_ms.max() <= 2 * problem.cloud_ms:  # then delegating never pays
        assert (relaxed <= change + 1e-9).all()
