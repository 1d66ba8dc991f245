"""The workload tables of running sites."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import two_sites

import nearcast
from nearcast.cluster.analytics.workload_tables import workload_tables
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.nats_source.source import NatsSource
from nearcast.coordinator import registry as coordinator_registry
from nearcast.coordinator.state import CoordinatorState
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import open_connection
from nearcast.nats.kv import Bucket
from nearcast.protocol.registration import ClientRecord
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")


async def test_tables_of_running_sites_with_a_coordinators_registry(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(NatsSource)
    plain = two_sites(tmp_path)
    deployment = replace(plain, topics=(TopicSpec("gps.a", (), ("cloud",), 1),), report_seconds=0.3)
    warehouse = Warehouse(str(tmp_path / "warehouse"))

    def tables(coordinated: bool) -> dict[str, list[Any]]:
        made = workload_tables(spark, deployment, warehouse, [("edge", "near.k1")], 3600.0, coordinated=coordinated)
        return {name: [tuple(row) for row in frame.collect()] for name, frame in made.items()}

    async with run_sites(deployment, tmp_path / "run"):
        connection = await open_connection([deployment.cloud().url], name="analytics")
        catalog = Catalog(connection, "cloud")
        await catalog.keep_reports()
        async with nearcast.connect(deployment.sites[0].url, name="car") as car:
            for n in range(4):
                await car.publish("gps.a", {"n": n})
        assert not await catalog.knows_clients()
        before = await asyncio.to_thread(tables, False)
        bucket = await Bucket(connection, "cloud", subjects.STATE_BUCKET).create(within=30.0)
        clients = coordinator_registry.Registry(CoordinatorState(bucket))
        await clients.put_client(ClientRecord("watcher", "cloud", subscribes=["gps.*"]))
        await clients.put_client(ClientRecord("gone", "cloud", subscribes=["gps.a"]))
        await clients.remove_client("gone")
        assert await catalog.knows_clients()
        after = await asyncio.to_thread(tables, True)
        await connection.close()
    assert before["demand"] == [("edge", "gps.a", pytest.approx(4 / 3600))]
    assert before["members"] == [("gps.a", "car", "pub")]
    assert after["members"] == [("gps.a", "car", "pub"), ("gps.a", "watcher", "sub")]
    assert after["relations"] == [("car", "watcher", 1)]
    assert after["subscriptions"] == [("edge", "near.k1")]
