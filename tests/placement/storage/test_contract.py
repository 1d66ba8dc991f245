"""What every planner must hold, for the storage planners."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from tests.placement.contract import PlannerContract
from tests.placement.storage.literal import problems, traffic

from nearcast.placement import storage


class TestStoragePlanners(PlannerContract):
    instances = problems()
    planners: ClassVar = {
        "sequential": lambda problem, seed: storage.sequential(problem),
        "wrr": lambda problem, seed: storage.wrr(problem),
        "random": storage.random,
        "refined": lambda problem, seed: storage.refined(problem, storage.wrr(problem), seed=seed, perturbations=2),
    }

    @staticmethod
    def exact(problem: storage.StorageProblem) -> storage.StoragePlan:
        return storage.exact(problem)

    @staticmethod
    def refine(problem: storage.StorageProblem, start: storage.StoragePlan, seed: int) -> storage.StoragePlan:
        return storage.refined(problem, start, seed=seed, perturbations=1)

    def assignment(self, result: storage.StoragePlan) -> Any:
        return result.stores.tolist(), result.placed.tolist()

    def check_placed(self, instance: storage.StorageProblem, result: storage.StoragePlan) -> None:
        np.testing.assert_array_equal(result.placed.sum(axis=1), instance.replicas)
        assert len(set(result.stores.tolist())) == len(result.stores) == instance.stores
        assert not np.delete(result.placed, result.stores, axis=1).any()

    def check_capacity(self, instance: storage.StorageProblem, result: storage.StoragePlan) -> None:
        assert (instance.sizes @ result.placed <= instance.capacity + 1e-9).all()

    def objective(self, instance: storage.StorageProblem, result: storage.StoragePlan) -> float:
        return traffic(instance, result.placed)

    def reported(self, result: storage.StoragePlan) -> float:
        return result.traffic
