"""Workload tables against plain Python, and planning in Spark against planning in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.cluster.running import two_sites

import nearcast
from nearcast.cluster import analytics, planning
from nearcast.cluster.source import NatsSource
from nearcast.cluster.warehouse import Warehouse
from nearcast.cluster.workload import workload_tables
from nearcast.coordinator import registry as coordinator_registry
from nearcast.coordinator.state import CoordinatorState
from nearcast.domain.topic import TopicSpec
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import open_connection
from nearcast.placement import homes, storage
from nearcast.protocol.registration import ClientRecord
from nearcast.protocol.reports import SiteReport, TopicReport
from nearcast.site.site import run_sites

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


def test_members_are_also_those_a_coordinator_knows(spark: SparkSession) -> None:
    records = [
        ClientRecord("c1", "tokyo", publishes=["gps.a"], subscribes=["gps.*", "log"]),
        ClientRecord("c2", "osaka", publishes=["gps.b+", "a.b.c"], subscribes=["gps.b+"]),
        ClientRecord("c3", "osaka", subscribes=["a.>"]),
    ]
    rows = [(msgspec.json.encode(record),) for record in records] + [(b"",), (None,)]  # the last two have left
    known = analytics.clients(spark.createDataFrame(rows, "payload BINARY"))
    published = analytics.memberships(known, "publishes")
    subscribed = analytics.matching_topics(analytics.memberships(known, "subscribes"), published)
    assert {tuple(row) for row in analytics.members(published, subscribed).collect()} == {
        ("gps.a", "c1", "both"), ("gps.b+", "c1", "sub"), ("log", "c1", "sub"),
        ("gps.b+", "c2", "both"), ("a.b.c", "c2", "pub"), ("a.b.c", "c3", "sub"),
    }  # fmt: skip


def test_traffic_is_the_mean_of_what_sites_report(spark: SparkSession) -> None:
    def told(topic: str, published: float, delivered: float) -> TopicReport:
        nowhere = ((0.0,), (0.0,), 0.0, 0.0, 0.0, 0.0)
        return TopicReport(topic, 1.0, 2.0, *nowhere, published, 10 * published, delivered, 10 * delivered, 0.0, b"")

    reports = [
        SiteReport("tokyo", 1, topics=[told("gps", 4.0, 8.0), told("log", 1.0, 0.0)]),
        SiteReport("tokyo", 1, topics=[told("gps", 2.0, 0.0)]),
        SiteReport("osaka", 1, topics=[]),
    ]
    payloads = [(msgspec.msgpack.encode(report),) for report in reports] + [(b"of another version",), (None,)]
    frame = spark.createDataFrame(payloads, "payload BINARY")
    found = [tuple(row) for row in analytics.traffic(analytics.site_reports(frame)).collect()]
    assert found == [("tokyo", "gps", 3.0, 4.0, 30.0, 40.0, 1.0, 2.0), ("tokyo", "log", 0.5, 0.0, 5.0, 0.0, 0.5, 1.0)]


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
        ours, theirs = planning.stores(spark, problem, assign), planner(problem)
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
    real = planning.factors

    def recorded(*args: Any) -> Any:
        made.append(real(*args))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(planning, "factors", recorded)
        ours = planning.reloc(spark, instance, parameters)
    (strength,) = made
    _, singular, right = np.linalg.svd(instance.members.toarray(), full_matrices=False)
    best = (right[:10].T * singular[:10] ** 2) @ right[:10]  # of all matrices of rank 10 the nearest to Z
    np.testing.assert_allclose(strength @ strength.T, best, atol=1e-9)
    monkeypatch.setattr("nearcast.placement.homes.relations.factors", lambda *_: strength)
    np.testing.assert_array_equal(ours.home, homes.reloc(instance, parameters).home)


def test_homes_without_shared_topics_are_planned_by_spark(spark: SparkSession) -> None:
    instance = homes_instance()
    alone = homes.RelocParameters(clusters=3, seed=1, relation_topic_limit=1)
    np.testing.assert_array_equal(planning.reloc(spark, instance, alone).home, homes.reloc(instance, alone).home)


async def test_tables_of_running_sites_with_a_coordinators_registry(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(NatsSource)
    plain = two_sites(tmp_path)
    deployment = replace(plain, topics=(TopicSpec("gps.a", (), ("cloud",), 1),), report_seconds=0.3)
    warehouse = Warehouse(str(tmp_path / "warehouse"))

    def tables(coordinated: bool) -> dict[str, list[Any]]:
        made = workload_tables(spark, deployment, warehouse, [("edge", "near.k1")], 60.0, coordinated=coordinated)
        return {name: [tuple(row) for row in frame.collect()] for name, frame in made.items()}

    async with run_sites(deployment, tmp_path / "run"):
        connection = await open_connection([deployment.cloud().url], name="analytics")
        book = Catalog(connection, "cloud")
        await book.keep_reports()
        async with nearcast.connect(deployment.sites[0].url, name="car") as car:
            for n in range(4):
                await car.publish("gps.a", {"n": n})
        assert not await book.knows_clients()
        before = await asyncio.to_thread(tables, False)
        clients = coordinator_registry.Registry(await CoordinatorState.open(connection, "cloud"))
        await clients.put_client(ClientRecord("watcher", "cloud", subscribes=["gps.*"]))
        await clients.put_client(ClientRecord("gone", "cloud", subscribes=["gps.a"]))
        await clients.remove_client("gone")
        assert await book.knows_clients()
        after = await asyncio.to_thread(tables, True)
        await connection.close()
    assert before["demand"] == [("edge", "gps.a", pytest.approx(4 / 60))]
    assert before["members"] == [("gps.a", "car", "pub")]
    assert after["members"] == [("gps.a", "car", "pub"), ("gps.a", "watcher", "sub")]
    assert after["relations"] == [("car", "watcher", 1)]
    assert after["subscriptions"] == [("edge", "near.k1")]
