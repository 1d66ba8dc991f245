"""Replication degrees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast import InputError
from nearcast.lab.workloads.content import popularity
from nearcast.placement.storage import (
    minimum_degrees,
    relative_weights,
    stores_needed,
    topic_weights,
    weighted_degrees,
    wrr_rounds,
)


def test_degrees_follow_weight_over_the_least_weight() -> None:
    # Section 6.1.1: Zipf with s_p = 1, ten topics, min_k = 2.
    degrees = minimum_degrees(popularity(10, 1.0), 2)
    assert degrees.tolist() == [20, 10, 7, 5, 4, 4, 3, 3, 3, 2]
    assert stores_needed(degrees, 5) == 20  # k_t ≤ M
    assert stores_needed(degrees, 2) == 31  # Σ k_t ≤ L·M


def test_a_topic_nobody_asks_for_gets_the_minimum() -> None:
    assert minimum_degrees(np.array([0.5, 0.5, 0.0]), 2).tolist() == [2, 2, 2]
    assert relative_weights(np.array([0.6, 0.3, 0.0])).tolist() == [2, 1, 1]
    assert minimum_degrees(np.zeros(2), 3).tolist() == [3, 3]


def test_degrees_shrink_to_fit_the_stores() -> None:
    degrees = weighted_degrees(popularity(10, 1.0), 2, stores=20, capacity=2)
    assert degrees.sum() == 40
    assert degrees.min() == 2
    assert (np.diff(degrees) <= 0).all()


def test_degrees_grow_until_every_place_is_used() -> None:
    # Section 6.1.2: M = 20 stores of L = 5 for ten topics; with equal popularity each has ten replicas.
    assert weighted_degrees(popularity(10, 0.0), 1, stores=20, capacity=5).tolist() == [10] * 10
    for exponent in (0.5, 1.0, 2.0, -1.0):
        degrees = weighted_degrees(popularity(10, exponent), 1, stores=20, capacity=5)
        assert degrees.sum() == 100
        assert degrees.max() <= 20
        assert (np.diff(degrees) * np.sign(exponent) <= 0).all()  # popularity decides


def test_weights_of_any_size_give_degrees() -> None:
    assert weighted_degrees(np.array([1e300, 1.0, 1e-300]), 1, stores=4, capacity=2).tolist() == [4, 3, 1]
    assert topic_weights(np.full((2, 3), 1e308)).tolist() == [0.5, 0.5]


def test_what_cannot_fit_is_refused() -> None:
    with pytest.raises(InputError, match="2 replicas of each topic need 6, 2 stores of 2 have 4"):
        weighted_degrees(np.ones(3), 2, stores=2, capacity=2)
    with pytest.raises(InputError, match="there are only 2 stores"):
        weighted_degrees(np.ones(3), 3, stores=2, capacity=9)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(3, 6),
    st.integers(0, 9),
)
def test_degrees_hold_their_bounds(demand: list[int], least: int, stores: int, spare: int) -> None:
    sizes = np.arange(1.0, len(demand) + 1)
    capacity = float(np.ceil(least * sizes.sum() / stores) + spare)
    degrees = weighted_degrees(np.array(demand, dtype=float), least, stores, capacity, sizes)
    assert degrees.min() >= least
    assert degrees.max() <= stores
    left = stores * capacity - sizes @ degrees
    assert left >= -1e-9
    # Filled: no topic that is asked for could have one more.
    growing = (degrees < stores) & (np.array(demand) > 0)
    assert not (growing & (sizes <= left)).any()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5))
def test_rounds_give_every_topic_all_its_replicas(topics: list[tuple[int, int]]) -> None:
    relative, replicas = np.array(topics).T
    rounds = wrr_rounds(relative, replicas)
    np.testing.assert_array_equal(np.sum(rounds, axis=0), replicas)
    assert all((portion <= relative).all() for portion in rounds if np.count_nonzero(portion) > 1)
