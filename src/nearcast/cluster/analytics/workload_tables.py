"""Writes the workload tables for the planners as CSV, from stored topics, the reports of sites and results."""

from __future__ import annotations

import time
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pacsv
from pyspark.sql import DataFrame

from nearcast.cluster.analytics import workload_statistics as statistics
from nearcast.cluster.channels.results import RESULTS
from nearcast.nats import subjects
from nearcast.nats.catalog import REPORTS_STREAM
from nearcast.nats.kv import bucket_stream, bucket_subject
from nearcast.nats.subjects import STATE_BUCKET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from nearcast.cluster.datasets.warehouse import Warehouse
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
    """The tables of the last `seconds`. subscriptions: (site, "<channel>.<key>") as the catalog has them.

    coordinated: a coordinator has a registry of clients; else only publishers of stored topics are known.
    """
    now = time.time()
    published = _published(spark, deployment).where(f"at >= timestamp_micros({int((now - seconds) * 1e6)})").cache()
    asked = statistics.demand(published, seconds)
    clients = _clients(spark, deployment, coordinated)
    known = published.select("topic", "client").union(statistics.memberships(clients, "publishes"))
    subscribed = statistics.matching_topics(statistics.memberships(clients, "subscribes"), known)
    belonging = statistics.members(known, subscribed)
    return {
        "demand": asked,
        "publishers": statistics.publishers(published, seconds),
        "topics": statistics.topics(asked),
        "members": belonging,
        "relations": statistics.relations(belonging),
        "traffic": statistics.traffic(statistics.site_reports(_reports(spark, deployment, now - seconds))),
        "rates": statistics.subscription_rates(_results(spark, warehouse), now),
        "subscriptions": spark.createDataFrame(list(subscriptions), "subscriber STRING, subscription STRING"),
    }


def write_tables(warehouse: Warehouse, tables: dict[str, DataFrame]) -> None:
    """Write each table as CSV, atomically."""
    for name, frame in tables.items():
        sink = pa.BufferOutputStream()
        pacsv.write_csv(frame.toArrow(), sink)
        warehouse.write_bytes(warehouse.folder("analytics", f"{name}.csv"), sink.getvalue())


def _stream(spark: SparkSession, deployment: Deployment, store: str, **options: str) -> DataFrame:
    """A stream of a site's store."""
    return spark.read.format("nats").options(servers=deployment.cloud().url, domain=store, **options).load()


def _published(spark: SparkSession, deployment: Deployment) -> DataFrame:
    cloud, frames = deployment.cloud().name, []
    for topic in deployment.topics:
        if topic.replicas:
            store = cloud if cloud in topic.replicas else topic.replicas[0]
            stored = _stream(spark, deployment, store, stream=subjects.stream_name(topic.name))
            frames.append(statistics.publications(stored))
    return reduce(DataFrame.union, frames) if frames else spark.createDataFrame([], _PUBLISHED)


def _reports(spark: SparkSession, deployment: Deployment, since: float) -> DataFrame:
    reports = _stream(spark, deployment, deployment.cloud().name, stream=REPORTS_STREAM)
    return reports.where(f"time >= timestamp_micros({int(since * 1e6)})")


def _clients(spark: SparkSession, deployment: Deployment, coordinated: bool) -> DataFrame:
    """(name, publishes, subscribes) of each client that is registered with the coordinator."""
    if not coordinated:
        return spark.createDataFrame([], statistics.CLIENT)
    stream, subject = bucket_stream(STATE_BUCKET), bucket_subject(STATE_BUCKET, "client.>")
    return statistics.clients(_stream(spark, deployment, deployment.cloud().name, stream=stream, subject=subject))


def _results(spark: SparkSession, warehouse: Warehouse) -> DataFrame:
    paths = [warehouse.uri(span.path) for span in warehouse.files(warehouse.folder("results"))]
    if not paths:
        return spark.createDataFrame(RESULTS.empty_table())
    return spark.read.parquet(*paths)
