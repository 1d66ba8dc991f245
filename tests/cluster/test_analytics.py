"""Workload tables against plain Python, and planning in Spark against planning in memory."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import numpy as np
import pytest
from pyspark.sql import SparkSession

from nearcast.cluster import analytics
from nearcast.cluster.planning import factors, reloc, stores
from nearcast.placement import homes, storage

pytestmark = pytest.mark.xdist_group("spark")


def test_tables_of_a_small_workload(spark: SparkSession) -> None:
    sent = [("gps.a", "c1", "tokyo"), ("gps.a", "c2", "osaka"), ("gps.a", "c1", "tokyo"), ("log", "c3", "osaka")]
    rows = [
        (f"pub.{topic}", f"{client}:{site}:{1_700_000_000_000_000 + n}:{n}" + (";0" if n == 3 else ""), b"x" * 10)
        for n, (topic, client, site) in enumerate(sent)
    ]
    rows += [("ntf.log", "c3:osaka:1:1", b""), ("pub.log", "not ours", b"")]
    stream = spark.createDataFrame(rows, "subject STRING, id STRING, payload BINARY")
    published = analytics.publications(stream).cache()
    asked = analytics.demand(published, 2.0)
    assert [tuple(row) for row in asked.collect()] == [
        ("osaka", "gps.a", 0.5), ("osaka", "log", 0.5), ("tokyo", "gps.a", 1.0),
    ]  # fmt: skip
    assert [tuple(row) for row in analytics.publishers(published, 2.0).collect()] == [("osaka", 1.0), ("tokyo", 1.0)]
    found = {row.topic: row for row in analytics.topics(asked).collect()}
    assert (found["gps.a"].rate, found["gps.a"].top_site, found["log"].locality) == (1.5, "tokyo", 1.0)
    assert found["gps.a"].popularity == pytest.approx(0.75)
    subscribed = spark.createDataFrame([("gps.a", "c2"), ("gps.a", "c3"), ("log", "c2")], "topic STRING, client STRING")
    belonging = analytics.members(published, subscribed)
    roles = {(row.topic, row.client): row.role for row in belonging.collect()}
    assert roles == {
        ("gps.a", "c1"): "pub", ("gps.a", "c2"): "both", ("gps.a", "c3"): "sub",
        ("log", "c2"): "sub", ("log", "c3"): "pub",
    }  # fmt: skip
    pairs = Counter((one, other) for topic, one in roles for t, other in roles if topic == t and one < other)
    assert {(r.client, r.other): r.topics for r in analytics.relations(belonging).collect()} == pairs


def test_the_rate_of_a_subscription_is_a_moving_average(spark: SparkSession) -> None:
    now = 1_000_000.0
    ages = (1, 5, 12, 35)
    rows = [("c", "k", datetime.fromtimestamp(now - age, UTC), "x" * 100) for age in ages]
    frame = spark.createDataFrame(rows, "channel STRING, key STRING, at TIMESTAMP, payload STRING")
    found = analytics.subscription_rates(frame, now, bucket=10.0, weight=0.3).collect()
    by_bucket = [200, 100, 0, 100]
    expected = sum(0.3 * 0.7**n * size / 10 for n, size in enumerate(by_bucket))
    assert found[0].subscription == "c.k"
    assert found[0].rate == pytest.approx(expected)


def test_stores_planned_by_spark_are_those_planned_in_memory(spark: SparkSession) -> None:
    rng = np.random.default_rng(3)
    a = np.arange(1, 30)
    network = storage.from_edges(30, a, rng.integers(0, a), np.ones(29))
    demand = rng.random((40, 30))
    problem = storage.StorageProblem(network, demand, 6, 20, np.full(40, 2), np.ones(40), np.ones(30))
    for assign, planner in (("wrr", storage.wrr), ("sequential", storage.sequential)):
        ours, theirs = stores(spark, problem, assign), planner(problem)
        np.testing.assert_array_equal(ours.placed, theirs.placed)
        np.testing.assert_array_equal(ours.stores, theirs.stores)


def homes_instance() -> homes.HomesInstance:
    rng = np.random.default_rng(4)
    clients, sites, topics = 120, 6, 30
    where, there = rng.random((clients, 2)) * 25, rng.random((sites, 2)) * 25
    ms = 0.1 * np.linalg.norm(where[:, None] - there, axis=2)
    between = 0.1 * np.linalg.norm(there[:, None] - there, axis=2)
    pairs = np.array([(t, c) for t in range(topics) for c in rng.choice(clients, 8, replace=False)])
    members = homes.membership(pairs[:, 0], pairs[:, 1], (topics, clients))
    return homes.HomesInstance(
        ms, between, 5.0, np.full(sites, 640.0), np.full(sites, 3200.0), np.full(topics, 20.0), members, members
    )


def test_spark_factorises_the_relation_matrix(spark: SparkSession) -> None:
    members = homes_instance().members
    strength = factors(spark, members, 10)
    _, singular, right = np.linalg.svd(members.toarray(), full_matrices=False)
    best = (right[:10].T * singular[:10] ** 2) @ right[:10]  # of all matrices of rank 10 the nearest to Z
    np.testing.assert_allclose(strength @ strength.T, best, atol=1e-9)


def test_homes_planned_by_spark_are_those_planned_in_memory(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The factorisation apart, which in memory is an approximation made from a seed, all is the same."""
    instance, parameters = homes_instance(), homes.RelocParameters(clusters=3, seed=1)
    ours = reloc(spark, instance, parameters)
    monkeypatch.setattr("nearcast.placement.homes.relations.factors", lambda members, rank, seed: factors(spark, members, rank))
    np.testing.assert_array_equal(ours.home, homes.reloc(instance, parameters).home)


def test_homes_without_shared_topics_are_planned_by_spark(spark: SparkSession) -> None:
    instance = homes_instance()
    alone = homes.RelocParameters(clusters=3, seed=1, relation_topic_limit=1)
    np.testing.assert_array_equal(reloc(spark, instance, alone).home, homes.reloc(instance, alone).home)
