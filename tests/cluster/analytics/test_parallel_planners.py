"""Planning in Spark against planning in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from nearcast.cluster.analytics import parallel_planners
from nearcast.placement import homes, storage

pytestmark = pytest.mark.xdist_group("spark")


def test_stores_planned_by_spark_are_those_planned_in_memory(spark: SparkSession) -> None:
    rng = np.random.default_rng(3)
    a = np.arange(1, 30)
    network = storage.from_edges(30, a, rng.integers(0, a), np.ones(29))
    demand = rng.random((40, 30))
    problem = storage.StorageProblem(network, demand, 6, 20, np.full(40, 2), np.ones(40), np.ones(30))
    for assign, planner in (("wrr", storage.wrr), ("sequential", storage.sequential)):
        ours, theirs = parallel_planners.stores(spark, problem, assign), planner(problem)
        np.testing.assert_array_equal(ours.placed, theirs.placed)
        np.testing.assert_array_equal(ours.stores, theirs.stores)


def homes_instance() -> homes.HomesProblem:
    rng = np.random.default_rng(4)
    clients, sites, topics = 120, 6, 30
    where, there = rng.random((clients, 2)) * 25, rng.random((sites, 2)) * 25
    ms = 0.1 * np.linalg.norm(where[:, None] - there, axis=2)
    between = 0.1 * np.linalg.norm(there[:, None] - there, axis=2)
    pairs = np.array([(t, c) for t in range(topics) for c in rng.choice(clients, 8, replace=False)])
    members = homes.membership(pairs[:, 0], pairs[:, 1], (topics, clients))
    return homes.HomesProblem(
        ms, between, 5.0, np.full(sites, 640.0), np.full(sites, 3200.0), np.full(topics, 20.0), members, members
    )


def test_homes_planned_by_spark_are_those_planned_in_memory(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the same factors: in memory they are a seeded approximation, Spark's are the exact ones."""
    instance, parameters = homes_instance(), homes.RelocParameters(clusters=3, rank=10, seed=1)
    made: list[Any] = []
    real = parallel_planners.factors

    def recorded(*args: Any) -> Any:
        made.append(real(*args))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(parallel_planners, "factors", recorded)
        ours = parallel_planners.reloc(spark, instance, parameters)
    (strength,) = made
    _, singular, right = np.linalg.svd(instance.members.toarray(), full_matrices=False)
    best = (right[:10].T * singular[:10] ** 2) @ right[:10]  # of all matrices of rank 10 the nearest to Z
    np.testing.assert_allclose(strength @ strength.T, best, atol=1e-9)
    monkeypatch.setattr("nearcast.placement.homes.relations.factors", lambda *_: strength)
    np.testing.assert_array_equal(ours.home, homes.reloc(instance, parameters).home)


def test_homes_without_shared_topics_are_planned_by_spark(spark: SparkSession) -> None:
    instance = homes_instance()
    alone = homes.RelocParameters(clusters=3, seed=1, relation_topic_limit=1)
    np.testing.assert_array_equal(
        parallel_planners.reloc(spark, instance, alone).home, homes.reloc(instance, alone).home
    )
