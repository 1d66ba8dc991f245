"""The example of Sections 5.3 and 5.5, of which the text gives all but the network and the rates of Fig. 3.

The network and rates used end to end are ours; they give the paper's vectors s_t and totals 17, 27 and 6.
"""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.placement import storage

VOTES = np.array([[0, 3, 5, 0, 2, 2], [0, 2, 5, 0, 5, 0], [0, 2, 5, 0, 5, 0]], dtype=float)
DEMAND = np.array([[2, 3, 5, 2, 3, 2], [0, 2, 14, 0, 11, 0], [0, 1, 2, 0, 2, 1]], dtype=float)
LINKS = np.array([(1, 2), (2, 3), (3, 5), (5, 6), (6, 4)]) - 1


@pytest.fixture
def problem() -> storage.StorageProblem:
    network = storage.from_edges(6, LINKS[:, 0], LINKS[:, 1])
    return storage.StorageProblem(network, DEMAND, stores=3, capacity=2, replicas=np.array([2, 2, 2]))


def held(plan: storage.StoragePlan) -> list[set[int]]:
    return [set((np.flatnonzero(row) + 1).tolist()) for row in plan.placed]


def test_weights() -> None:
    np.testing.assert_allclose(storage.topic_weights(DEMAND), [17 / 50, 27 / 50, 6 / 50])


def test_step_1_gives_the_vectors_of_possible_stores(problem: storage.StorageProblem) -> None:
    np.testing.assert_allclose(storage.plan_stores(problem).votes, VOTES)


def test_steps_2_and_3_choose_stores_3_5_and_2(problem: storage.StorageProblem) -> None:
    planning = storage.choose_stores(problem, VOTES, np.array([0.34, 0.54, 0.12]))
    np.testing.assert_allclose(planning.weighted, [0, 2.34, 5, 0, 3.98, 0.68])
    assert (planning.stores + 1).tolist() == [3, 5, 2]


@pytest.mark.parametrize("assign", [storage.assign_sequential, storage.assign_wrr])
def test_step_4_assigns_b_then_a_then_c(problem: storage.StorageProblem, assign: object) -> None:
    planning = storage.choose_stores(problem, VOTES, storage.topic_weights(DEMAND))
    assert held(assign(problem, planning)) == [{2, 3}, {3, 5}, {2, 5}]  # type: ignore[operator]


@pytest.mark.parametrize("plan", [storage.sequential, storage.wrr])
def test_all_steps_together(problem: storage.StorageProblem, plan: object) -> None:
    result = plan(problem)  # type: ignore[operator]
    assert (result.stores + 1).tolist() == [3, 5, 2]
    assert held(result) == [{2, 3}, {3, 5}, {2, 5}]
    assert result.traffic == 20
    assert result.mean_hops == pytest.approx(20 / 50)


def test_relative_weights_and_rounds_of_section_5_5() -> None:
    relative = storage.relative_weights(DEMAND.sum(axis=1))
    assert relative.tolist() == [3, 5, 1]
    rounds = storage.wrr_rounds(relative, np.array([6, 6, 6]))
    assert [r.tolist() for r in rounds] == [[3, 5, 1], [3, 1, 1], [0, 0, 4]]
