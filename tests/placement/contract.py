"""What every planner must hold, whatever it places. Each planner inherits this and fills in the hooks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st


class PlannerContract:
    """Behaviour shared by all planners.

    A subclass sets:
      instances     hypothesis strategy of small problem instances
      planners      name -> function(instance, seed) -> result
      assignment    result -> what goes where, comparable with ==
      check_placed  (instance, result): raises when an item is not placed exactly once
      check_capacity (instance, result): raises when a result that claims to be feasible overfills something
      objective     (instance, result) -> the cost recomputed from scratch by the literal definition
      reported      result -> the cost the planner says it reached
    and, where there is one:
      exact         (instance) -> a result; never worse than any planner
      refine        (instance, start result, seed) -> a result; never worse than its start
    """

    instances: st.SearchStrategy[Any]
    planners: dict[str, Any]
    exact: Any = None
    refine: Any = None
    tolerance = 1e-9

    def assignment(self, result: Any) -> Any:
        raise NotImplementedError

    def check_placed(self, instance: Any, result: Any) -> None:
        raise NotImplementedError

    def check_capacity(self, instance: Any, result: Any) -> None:
        raise NotImplementedError

    def objective(self, instance: Any, result: Any) -> float:
        raise NotImplementedError

    def reported(self, result: Any) -> float:
        raise NotImplementedError

    def slack(self, cost: float) -> float:
        return self.tolerance * max(1.0, abs(cost))

    def test_every_item_is_placed_once_within_capacity(self) -> None:
        @given(self.instances, st.integers(0, 2**16))
        def check(instance: Any, seed: int) -> None:
            for plan in self.planners.values():
                result = plan(instance, seed)
                self.check_placed(instance, result)
                self.check_capacity(instance, result)

        check()

    def test_the_same_seed_gives_the_same_result(self) -> None:
        @given(self.instances, st.integers(0, 2**16))
        def check(instance: Any, seed: int) -> None:
            for name, plan in self.planners.items():
                first, second = plan(instance, seed), plan(instance, seed)
                assert self.assignment(first) == self.assignment(second), name

        check()

    def test_the_reported_cost_is_the_cost(self) -> None:
        @given(self.instances, st.integers(0, 2**16))
        def check(instance: Any, seed: int) -> None:
            for name, plan in self.planners.items():
                result = plan(instance, seed)
                expected = self.objective(instance, result)
                assert abs(self.reported(result) - expected) <= self.slack(expected), name

        check()

    def test_exact_is_never_worse(self) -> None:
        if self.exact is None:
            return

        @given(self.instances, st.integers(0, 2**16))
        def check(instance: Any, seed: int) -> None:
            best = self.objective(instance, self.exact(instance))
            for name, plan in self.planners.items():
                cost = self.objective(instance, plan(instance, seed))
                assert best <= cost + self.slack(cost), name

        check()

    def test_refined_is_never_worse_than_its_start(self) -> None:
        if self.refine is None:
            return

        @given(self.instances, st.integers(0, 2**16))
        def check(instance: Any, seed: int) -> None:
            for name, plan in self.planners.items():
                start = plan(instance, seed)
                before = self.objective(instance, start)
                after = self.objective(instance, self.refine(instance, start, seed))
                assert after <= before + self.slack(before), name

        check()
