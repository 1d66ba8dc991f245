"""What every planner must hold, for the balancing planners."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from tests.placement.balance import literal
from tests.placement.contract import PlannerContract

from nearcast.placement import balance


class TestBalancePlanners(PlannerContract):
    instances = literal.problems()
    planners: ClassVar = {
        "ldm": lambda problem, seed: balance.ldm(problem, literal.anywhere(problem, seed)),
        "sdm": lambda problem, seed: balance.sdm(problem, literal.anywhere(problem, seed)),
        "gsh": lambda problem, seed: balance.gsh(problem, literal.anywhere(problem, seed)),
        "staged": lambda problem, seed: balance.staged(problem, literal.anywhere(problem, seed)),
        "refined": lambda problem, seed: balance.refined(problem, literal.anywhere(problem, seed)),
        "grouped": lambda problem, seed: balance.grouped(problem, literal.anywhere(problem, seed)),
    }

    @staticmethod
    def refine(problem: balance.BalanceProblem, start: balance.BalancePlan, seed: int) -> balance.BalancePlan:
        return balance.refined(problem, start.assignment, seed=seed)

    def assignment(self, result: balance.BalancePlan) -> Any:
        return result.assignment.tolist()

    def check_placed(self, instance: balance.BalanceProblem, result: balance.BalancePlan) -> None:
        assert result.assignment.shape == (instance.subscribers,)
        assert ((result.assignment >= 0) & (result.assignment < instance.sites)).all()

    def check_capacity(self, instance: balance.BalanceProblem, result: balance.BalancePlan) -> None:
        """Brokers have no capacity; the lower bound and the loads' sum must hold instead."""
        assert result.max_load >= balance.lower_bound(instance) * (1 - 1e-9)
        assert result.loads.sum() >= instance.outgoing.sum() * (1 - 1e-9)

    def objective(self, instance: balance.BalanceProblem, result: balance.BalancePlan) -> float:
        return max(literal.loads(instance, result.assignment.tolist()))

    def reported(self, result: balance.BalancePlan) -> float:
        return result.max_load


def test_moved_are_those_whose_broker_changes() -> None:
    problem = balance.from_pairs(np.arange(6), np.arange(6) % 3, np.array([1.0, 2, 3]), subscribers=6, sites=2)
    current = np.zeros(6, dtype=int)
    plan = balance.gsh(problem, current)
    np.testing.assert_array_equal(plan.moved, np.flatnonzero(plan.assignment != current))
    assert plan.moves == len(plan.moved)
