"""The delay model is the paper's, for any roles and weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.placement.homes.literal import literal_delay
from tests.placement.homes.strategies import instances

from nearcast import InputError
from nearcast.placement.homes import HomesProblem, evaluate, membership


def figure_5() -> HomesProblem:
    """Two sites, t_1 published by c_1, c_2, c_3 and t_2 by c_3; c_4 subscribes to both."""
    return HomesProblem(
        client_site_ms=np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0], [3.0, 1.0]]),
        site_site_ms=np.array([[0.0, 2.0], [2.0, 0.0]]),
        cloud_ms=5.0,
        storage=np.array([10.0, 10.0]),
        compute=np.array([20.0, 20.0]),
        spool_size=np.array([8.0, 6.0]),
        publications=membership([0, 0, 0, 1], [0, 1, 2, 2], (2, 4)),
        subscriptions=membership([0, 1], [3, 3], (2, 4)),
    )


def test_figure_5_of_the_paper() -> None:
    plan = evaluate(figure_5(), np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(plan.storage_used, [8, 14])
    np.testing.assert_allclose(plan.compute_used, [16, 14])
    np.testing.assert_allclose(plan.local_share, [1, 10 / 14])  # s_2 delegates
    # Four publications, all to c_4: 1 + 2 + 1 twice, and twice 1 + 1 with 4/14 of 2 d^C.
    assert plan.delay_ms == pytest.approx((2 * 4 + 2 * (2 + 10 * 4 / 14)) / 4)
    assert plan.distance_delay_ms == pytest.approx(2)
    assert plan.delegated_share == pytest.approx(2 * (4 / 14) / 4)


def test_a_site_with_nothing_to_manage_delegates_nothing() -> None:
    plan = evaluate(figure_5(), np.array([1, 1, 1, 0]))
    assert plan.local_share[0] == 1.0
    assert plan.storage_used[0] == plan.compute_used[0] == 0.0


@given(instances(), st.data())
def test_the_sums_are_those_of_the_equations(problem: HomesProblem, data: st.DataObject) -> None:
    home = data.draw(st.lists(st.integers(0, problem.sites - 1), min_size=problem.clients, max_size=problem.clients))
    plan, literal = evaluate(problem, np.array(home)), literal_delay(problem, home)
    assert plan.delay_ms == pytest.approx(literal["y"], abs=1e-12)
    assert plan.distance_delay_ms == pytest.approx(literal["y1"], abs=1e-12)
    assert plan.resource_delay_ms == pytest.approx(literal["y2"], abs=1e-12)
    np.testing.assert_allclose(plan.storage_used, literal["storage"])
    np.testing.assert_allclose(plan.compute_used, literal["compute"])
    np.testing.assert_allclose(plan.local_share, literal["theta"])


def test_a_heavier_publication_and_a_heavier_subscriber_count_for_more() -> None:
    delays = np.array([[0.0], [1.0], [5.0]])  # 0 publishes, 1 and 2 listen

    def mean(publications: list[float], listeners: list[float]) -> float:
        problem = HomesProblem(
            delays,
            np.zeros((1, 1)),
            5.0,
            np.array([9.0]),
            np.array([9.0]),
            np.array([1.0, 1.0]),
            membership([0, 1], [0, 1], (2, 3), publications),
            membership([0, 0, 1], [1, 2, 2], (2, 3), [*listeners, 1.0]),
        )
        return evaluate(problem, np.zeros(3, dtype=np.int64)).delay_ms

    assert mean([1, 0], [1, 1]) == pytest.approx(3)
    assert mean([1, 0], [3, 1]) == pytest.approx(2)
    assert mean([1, 1], [1, 1]) == pytest.approx((3 + 6) / 2)
    assert mean([3, 1], [1, 1]) == pytest.approx((3 * 3 + 6) / 4)


def test_a_publication_nobody_else_hears_has_no_delay() -> None:
    only = membership([0], [0], (1, 1))
    problem = HomesProblem(np.ones((1, 1)), np.zeros((1, 1)), 5.0, np.ones(1), np.ones(1), np.array([4.0]), only, only)
    plan = evaluate(problem, np.array([0]))
    assert plan.delay_ms == 0.0
    assert plan.delegated_share == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"site_site_ms": np.ones((2, 2))}, "diagonal"),
        ({"storage": np.array([1.0])}, r"storage is \(1,\); \(2,\) is needed"),
        ({"spool_size": np.array([1.0, -1.0])}, "spool_size must be finite and not negative"),
        ({"client_site_ms": np.full((4, 2), np.nan)}, "client_site_ms must be finite"),
        ({"cloud_ms": -1.0}, "cloud_ms is -1.0"),
        ({"client_site_ms": np.zeros((4, 0))}, "at least one site"),
        ({"subscriptions": membership([0], [0], (1, 4))}, "subscriptions is"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], reason: str) -> None:
    fields = {name: getattr(figure_5(), name) for name in HomesProblem.__dataclass_fields__}
    with pytest.raises(InputError, match=reason):
        HomesProblem(**{**fields, **change})
