"""Keeps the workload tables: reads kept topics, sites' reports and results, writes CSV for the planners."""

from __future__ import annotations

import time
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pacsv

from nearcast.cluster import analytics
from nearcast.cluster.results import RESULTS
from nearcast.nats import subjects
from nearcast.nats.catalog import REPORTS_STREAM
from nearcast.nats.kv import bucket_stream
from nearcast.nats.subjects import STATE_BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from nearcast.cluster.warehouse import Warehouse
    from nearcast.domain.deployment import Deployment

__all__ = ["workload_tables", "write_tables"]

_PUBLISHED = "topic STRING, client STRING, site STRING, at TIMESTAMP, bytes INT"


def workload_tables(
    spark: SparkSession,
    deployment: Deployment,
    warehouse: Warehouse,
    subscriptions: Iterable[tuple[str, str]],
    seconds: float,
    *,
    coordinated: bool,
) -> dict[str, DataFrame]:
    """The tables for the last so many seconds. subscriptions: (site, "<channel>.<key>") as the registry has them.

    coordinated: a coordinator knows clients; else only those that publish to kept topics are known.
    """
    now = time.time()
    published = _published(spark, deployment).where(f"at >= timestamp_micros({int((now - seconds) * 1e6)})").cache()
    asked = analytics.demand(published, seconds)
    clients = _clients(spark, deployment, coordinated)
    known = published.select("topic", "client").union(analytics.memberships(clients, "publishes"))
    subscribed = analytics.matching_topics(analytics.memberships(clients, "subscribes"), known)
    belonging = analytics.members(known, subscribed)
    return {
        "demand": asked,
        "publishers": analytics.publishers(published, seconds),
        "topics": analytics.topics(asked),
        "members": belonging,
        "relations": analytics.relations(belonging),
        "traffic": analytics.traffic(analytics.site_reports(_reports(spark, deployment, now - seconds))),
        "rates": analytics.subscription_rates(_results(spark, warehouse), now),
        "subscriptions": spark.createDataFrame(list(subscriptions), "subscriber STRING, subscription STRING"),
    }


def write_tables(warehouse: Warehouse, tables: dict[str, DataFrame]) -> None:
    """Write each table as CSV, whole or not at all."""
    for name, frame in tables.items():
        sink = pa.BufferOutputStream()
        pacsv.write_csv(frame.toArrow(), sink)
        warehouse.write_text(warehouse.folder("analytics", f"{name}.csv"), sink.getvalue())


def _published(spark: SparkSession, deployment: Deployment) -> DataFrame:
    cloud = deployment.cloud()
    frames = []
    for topic in deployment.topics:
        if topic.replicas:
            store = cloud.name if cloud.name in topic.replicas else topic.replicas[0]
            reader = spark.read.format("nats").option("servers", cloud.url).option("domain", store)
            frames.append(analytics.publications(reader.option("stream", subjects.stream_name(topic.name)).load()))
    if not frames:
        return spark.createDataFrame([], _PUBLISHED)
    return reduce(lambda one, other: one.union(other), frames)


def _reports(spark: SparkSession, deployment: Deployment, since: float) -> DataFrame:
    cloud = deployment.cloud()
    reader = spark.read.format("nats").option("servers", cloud.url).option("domain", cloud.name)
    return reader.option("stream", REPORTS_STREAM).load().where(f"time >= timestamp_micros({int(since * 1e6)})")


def _clients(spark: SparkSession, deployment: Deployment, coordinated: bool) -> DataFrame:
    """(name, publishes, subscribes) of each client the coordinator knows."""
    if not coordinated:
        return spark.createDataFrame([], analytics.CLIENT)
    cloud = deployment.cloud()
    reader = spark.read.format("nats").option("servers", cloud.url).option("domain", cloud.name)
    kept = reader.option("stream", bucket_stream(STATE_BUCKET)).option("subject", f"$KV.{STATE_BUCKET}.client.>").load()
    return analytics.clients(kept)


def _results(spark: SparkSession, warehouse: Warehouse) -> DataFrame:
    paths = [warehouse.uri(span.path) for span in warehouse.files(warehouse.folder("results"))]
    if not paths:
        return spark.createDataFrame(RESULTS.empty_table())
    return spark.read.parquet(*paths)
