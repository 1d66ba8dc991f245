"""What a move is said to change is what it changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.placement.homes.strategies import instances

from nearcast.placement.homes import HomesInstance, evaluate
from nearcast.placement.homes.incremental import Homes


def total(instance: HomesInstance, home: np.ndarray) -> float:
    return evaluate(instance, home).delay_ms * instance.delay_weights.total


@given(instances(), st.integers(0, 2**16))
def test_every_change_is_that_of_a_full_recomputation(instance: HomesInstance, seed: int) -> None:
    rng = np.random.default_rng(seed)
    homes = Homes(instance, rng.integers(instance.sites, size=instance.clients))
    for _ in range(4):
        change, _ = homes.move_changes(np.arange(instance.clients))
        before = total(instance, homes.home)
        for client in range(instance.clients):
            for site in range(instance.sites):
                moved = homes.home.copy()
                moved[client] = site
                assert change[client, site] == pytest.approx(total(instance, moved) - before, abs=1e-9)
        homes.move(int(rng.integers(instance.clients)), int(rng.integers(instance.sites)))
        assert homes.total_ms() == pytest.approx(total(instance, homes.home), abs=1e-9)


@given(instances(), st.integers(0, 2**16))
def test_the_relaxed_change_is_that_of_a_site_with_room(instance: HomesInstance, seed: int) -> None:
    home = np.random.default_rng(seed).integers(instance.sites, size=instance.clients)
    change, relaxed = Homes(instance, home).move_changes(np.arange(instance.clients))
    roomy = HomesInstance(
        instance.client_site_ms,
        instance.site_site_ms,
        instance.cloud_ms,
        instance.storage + 1000,
        instance.compute + 1000,
        instance.spool_size,
        instance.publications,
        instance.subscriptions,
    )
    in_room, in_room_relaxed = Homes(roomy, home).move_changes(np.arange(instance.clients))
    np.testing.assert_allclose(in_room, in_room_relaxed, atol=1e-9)
    if instance.site_site_ms.max() <= 2 * instance.cloud_ms:  # then delegating never pays
        assert (relaxed <= change + 1e-9).all()
