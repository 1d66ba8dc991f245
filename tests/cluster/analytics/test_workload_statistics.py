"""Workload tables against plain Python."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import msgspec
import pytest
from pyspark.sql import SparkSession

from nearcast.cluster.analytics import workload_statistics as statistics
from nearcast.protocol.registration import ClientRecord
from nearcast.protocol.reports import SiteReport, TopicReport

pytestmark = pytest.mark.xdist_group("spark")


def test_tables_of_a_small_workload(spark: SparkSession) -> None:
    sent = [("gps.a", "c1", "tokyo"), ("gps.a", "c2", "osaka"), ("gps.a", "c1", "tokyo"), ("log", "c3", "osaka")]
    rows = [
        (f"pub.{topic}", f"{client}:{site}:{1_700_000_000_000_000 + n}:{n}" + (";0" if n == 3 else ""), b"x" * 10)
        for n, (topic, client, site) in enumerate(sent)
    ]
    rows += [("ntf.log", "c3:osaka:1:1", b""), ("pub.log", "not ours", b"")]
    stream = spark.createDataFrame(rows, "subject STRING, id STRING, payload BINARY")
    published = statistics.publications(stream).cache()
    asked = statistics.demand(published, 2.0)
    assert [tuple(row) for row in asked.collect()] == [
        ("osaka", "gps.a", 0.5), ("osaka", "log", 0.5), ("tokyo", "gps.a", 1.0),
    ]  # fmt: skip
    assert [tuple(row) for row in statistics.publishers(published, 2.0).collect()] == [("osaka", 1.0), ("tokyo", 1.0)]
    found = {row.topic: row for row in statistics.topics(asked).collect()}
    assert (found["gps.a"].rate, found["gps.a"].top_site, found["log"].locality) == (1.5, "tokyo", 1.0)
    assert found["gps.a"].popularity == pytest.approx(0.75)
    subscribed = spark.createDataFrame([("gps.a", "c2"), ("gps.a", "c3"), ("log", "c2")], "topic STRING, client STRING")
    belonging = statistics.members(published, subscribed)
    roles = {(row.topic, row.client): row.role for row in belonging.collect()}
    assert roles == {
        ("gps.a", "c1"): "pub", ("gps.a", "c2"): "both", ("gps.a", "c3"): "sub",
        ("log", "c2"): "sub", ("log", "c3"): "pub",
    }  # fmt: skip
    pairs = Counter((one, other) for topic, one in roles for t, other in roles if topic == t and one < other)
    assert {(r.client, r.other): r.topics for r in statistics.relations(belonging).collect()} == pairs


def test_members_are_also_those_a_coordinator_knows(spark: SparkSession) -> None:
    records = [
        ClientRecord("c1", "tokyo", publishes=["gps.a"], subscribes=["gps.*", "log"]),
        ClientRecord("c2", "osaka", publishes=["gps.b+", "a.b.c"], subscribes=["gps.b+"]),
        ClientRecord("c3", "osaka", subscribes=["a.>"]),
    ]
    rows = [(msgspec.json.encode(record),) for record in records] + [(b"",), (None,)]  # the last two have left
    known = statistics.clients(spark.createDataFrame(rows, "payload BINARY"))
    published = statistics.memberships(known, "publishes")
    subscribed = statistics.matching_topics(statistics.memberships(known, "subscribes"), published)
    assert {tuple(row) for row in statistics.members(published, subscribed).collect()} == {
        ("gps.a", "c1", "both"), ("gps.b+", "c1", "sub"), ("log", "c1", "sub"),
        ("gps.b+", "c2", "both"), ("a.b.c", "c2", "pub"), ("a.b.c", "c3", "sub"),
    }  # fmt: skip


def test_traffic_is_the_mean_of_what_sites_report(spark: SparkSession) -> None:
    def told(topic: str, published: float, delivered: float) -> TopicReport:
        nowhere = ((0.0,) * 8, (0.0,) * 8, 0.0, 0.0, 0.0, 0.0, [], [])
        return TopicReport(topic, 1.0, 2.0, *nowhere, published, 10 * published, delivered, 10 * delivered, 0.0, 0.0)

    reports = [
        SiteReport("tokyo", 1, topics=[told("gps", 4.0, 8.0), told("log", 1.0, 0.0)]),
        SiteReport("tokyo", 1, topics=[told("gps", 2.0, 0.0)]),
        SiteReport("osaka", 1, topics=[]),
    ]
    payloads = [(msgspec.msgpack.encode(report),) for report in reports] + [(b"of another version",), (None,)]
    frame = spark.createDataFrame(payloads, "payload BINARY")
    found = [tuple(row) for row in statistics.traffic(statistics.site_reports(frame)).collect()]
    assert found == [("tokyo", "gps", 3.0, 4.0, 30.0, 40.0, 1.0, 2.0), ("tokyo", "log", 0.5, 0.0, 5.0, 0.0, 0.5, 1.0)]


def test_the_rate_of_a_subscription_is_a_moving_average(spark: SparkSession) -> None:
    now = 1_000_000.0
    ages = (1, 5, 12, 35)
    rows = [("c", "k", datetime.fromtimestamp(now - age, UTC), "x" * 100) for age in ages]
    frame = spark.createDataFrame(rows, "channel STRING, key STRING, at TIMESTAMP, payload STRING")
    found = statistics.subscription_rates(frame, now, bucket=10.0, weight=0.3).collect()
    by_bucket = [200, 100, 0, 100]
    expected = sum(0.3 * 0.7**n * size / 10 for n, size in enumerate(by_bucket))
    assert found[0].subscription == "c.k"
    assert found[0].rate == pytest.approx(expected)
