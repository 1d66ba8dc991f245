"""Topics come, go and change; the others stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.colocation.models import K, literal_feasible, made_up

from nearcast.placement.colocation.incremental import NEW, adjusted
from nearcast.placement.colocation.planners import ffd
from nearcast.placement.colocation.problem import ColocationTopics, Feasibility, feasibility

seeds = st.integers(0, 400)


def check(possible: Feasibility, worker: np.ndarray) -> None:
    for number in np.unique(worker):
        topics = np.flatnonzero(worker == number).tolist()
        assert len(topics) <= K
        assert literal_feasible(possible, topics)


def without(possible: Feasibility, gone: list[int]) -> Feasibility:
    kept = [np.delete(column, gone) for column in vars(possible.topics).values()]
    return feasibility(possible.model, ColocationTopics(*kept), margin=0.1)


@given(seeds, st.sets(st.integers(0, 8), max_size=4))
@settings(max_examples=30)
def test_new_topics_move_no_other(seed: int, added: set[int]) -> None:
    possible = made_up(seed, 9)
    before = ffd(without(possible, sorted(added)), K)
    current = np.full(9, NEW)
    current[[t for t in range(9) if t not in added]] = before.worker
    after = adjusted(possible, K, current)
    check(possible, after.worker)
    stayed = current != NEW
    np.testing.assert_array_equal(after.worker[stayed], current[stayed])


@given(seeds, st.sets(st.integers(0, 8), max_size=4))
@settings(max_examples=30)
def test_removed_topics_move_no_other(seed: int, gone: set[int]) -> None:
    possible = made_up(seed, 9)
    current = np.delete(ffd(possible, K).worker, sorted(gone))
    left = without(possible, sorted(gone))
    np.testing.assert_array_equal(adjusted(left, K, current).worker, current)


@given(seeds, st.integers(0, 8), st.floats(0.2, 3))
@settings(max_examples=30)
def test_only_the_changed_topic_moves(seed: int, which: int, factor: float) -> None:
    possible = made_up(seed, 9)
    current = ffd(possible, K).worker
    rate = possible.topics.rate.copy()
    rate[which] = min(rate[which] * factor, 950 / possible.topics.processing_ms[which])
    bound = np.maximum(possible.topics.bound_ms, 1500.0 * (np.arange(9) == which))
    changed_topics = replace(possible.topics, rate=rate, bound_ms=bound)
    changed = feasibility(possible.model, changed_topics, margin=0.1)
    after = adjusted(changed, K, current, np.arange(9) == which)
    check(changed, after.worker)
    others = np.arange(9) != which
    np.testing.assert_array_equal(after.worker[others], current[others])


def test_a_new_broker_takes_an_unused_number() -> None:
    possible = made_up(4, 6)
    alone = np.array([3, NEW, 8, 5, NEW, NEW])
    after = adjusted(possible, 1, alone)
    assert after.worker[[0, 2, 3]].tolist() == [3, 8, 5]
    assert sorted(after.worker[[1, 4, 5]].tolist()) == [9, 10, 11]


def test_a_smaller_k_moves_the_heaviest() -> None:
    possible = made_up(11, 8)
    current = ffd(possible, K).worker
    after = adjusted(possible, 2, current)
    assert np.bincount(after.worker).max() <= 2
    check(possible, after.worker)
