"""The simulated check of a plan, and the margin that is chosen by it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.colocation.models import made_up, wild_model

from nearcast.placement.colocation import (
    ColocationPlan,
    ColocationTopics,
    check_plan,
    ffd,
    max_rate,
    with_checked_margin,
)
from nearcast.placement.colocation.latency_model import topic_features
from nearcast.placement.colocation.worker_simulation import SimulatedWorker

SHORT = SimulatedWorker(seconds=20)


def test_an_overloaded_worker_is_late_and_an_idle_one_is_not() -> None:
    topics = ColocationTopics(np.array([30.0, 30.0, 1.0]), np.array([20.0, 20.0, 10.0]), np.full(3, 1000.0))
    apart = ColocationPlan(np.array([0, 1, 2]), np.zeros(3), 0)
    together = ColocationPlan(np.array([0, 0, 2]), np.zeros(3), 0)
    assert check_plan(apart, topics, SHORT).late_topics == 0
    checked = check_plan(together, topics, SHORT)
    assert checked.late_topics == pytest.approx(2 / 3)
    assert checked.late_messages > 0.5
    assert checked.p90_ms.shape == (3, 3)


def test_constant_arrivals_below_saturation_wait_for_nobody() -> None:
    topics = ColocationTopics(np.array([40.0]), np.array([20.0]), np.array([25.0]))
    checked = check_plan(ColocationPlan(np.zeros(1, int), np.zeros(1), 0), topics, SimulatedWorker("constant"))
    assert checked.p90_ms == pytest.approx(20.0)
    assert checked.late_messages == 0


def test_nothing_to_check() -> None:
    none = np.empty(0)
    checked = check_plan(ColocationPlan(np.empty(0, int), none, 0), ColocationTopics(none, none, none), SHORT)
    assert (checked.late_topics, checked.late_messages) == (0.0, 0.0)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 50))
def test_the_chosen_margin_has_no_more_late_topics_than_none(seed: int) -> None:
    possible = made_up(seed, 8)
    found = with_checked_margin(possible.model, possible.topics, lambda f: ffd(f, 3), SHORT, seed=seed)
    plain = ffd(type(possible)(**{**vars(possible), "log_limit": np.log(possible.topics.bound_ms)}), 3)
    runs, topics = found.check.p90_ms.shape
    assert runs * topics >= 490  # fewer would not show a share of 0.2 %
    assert found.check.late_topics <= check_plan(plain, possible.topics, SHORT, seed, runs).late_topics
    assert 0 <= found.margin <= 0.5


@settings(max_examples=30)
@given(st.integers(0, 4), st.floats(10, 40), st.floats(20, 2000), st.sampled_from([0.0, 0.1, 0.5]))
def test_below_the_highest_rate_the_bound_is_met(seed: int, processing: float, bound: float, margin: float) -> None:
    model = wild_model(seed)
    most = max_rate(model, processing, bound, margin)
    assert 0 <= most * processing <= 1000 * (1 + 1e-9)
    if most > 0:
        rate = np.linspace(1.0, most, 50)[:-1]
        features = topic_features(rate, np.full(49, processing))
        assert (model.log_latency(1, features, features) <= np.log(bound * (1 - margin)) + 0.05).all()
