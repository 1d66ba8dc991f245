"""Predictions are monotone and batched; feasibility is theirs put to the test."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.colocation.models import K, literal_feasible, literal_latency, made_up

seeds = st.integers(0, 400)


@given(seeds, st.integers(2, K))
@settings(max_examples=25)
def test_adding_a_topic_never_lowers_a_prediction(seed: int, size: int) -> None:
    """Property 1(b), with a model whose learned latencies do fall."""
    possible = made_up(seed, K)
    larger = possible.model.predict_ms(possible.features[None, :size])[0]
    smaller = possible.model.predict_ms(possible.features[None, : size - 1])[0]
    assert (larger[: size - 1] >= smaller * (1 - 1e-5)).all()


def test_the_learned_latencies_of_these_models_do_fall() -> None:
    """Otherwise the test above could not fail."""
    falls = 0
    for seed in range(50):
        possible = made_up(seed, K)
        pair = possible.model.log_latency_of_sets(possible.features[None, :2])[0]
        three = possible.model.log_latency_of_sets(possible.features[None, :3])[0, :2]
        falls += int((three < pair - 0.01).any())
    assert falls > 10


@given(seeds)
@settings(max_examples=25)
def test_batched_predictions_are_those_of_single_sets(seed: int) -> None:
    possible = made_up(seed, 6)
    for size in range(1, K + 1):
        sets = np.array(list(combinations(range(6), size)))
        together = np.log(possible.model.predict_ms(possible.features[sets]))
        for row, members in zip(together, sets.tolist(), strict=True):
            expected = [literal_latency(possible, t, [o for o in members if o != t]) for t in members]
            np.testing.assert_allclose(row, expected, atol=1e-4)


@given(seeds)
@settings(max_examples=25)
def test_feasibility_is_the_definition(seed: int) -> None:
    possible = made_up(seed, 6)
    for size in range(1, K + 1):
        sets = np.array(list(combinations(range(6), size)))
        expected = np.array([literal_feasible(possible, members) for members in sets.tolist()])
        np.testing.assert_array_equal(possible.sets(sets), expected)
        np.testing.assert_array_equal(possible.groups(sets.tolist()), expected)
        assert not (expected & ~possible.may_be(sets)).any()
        if size > 1:
            base = possible.sets(sets[:, :-1])
            np.testing.assert_array_equal(possible.extended(sets)[base], expected[base])


def test_nothing_is_faster_than_its_own_processing() -> None:
    possible = made_up(3, 6)
    alone = possible.model.predict_ms(possible.features[:, None, :])[:, 0]
    assert (alone >= possible.topics.processing_ms * (1 - 1e-9)).all()
