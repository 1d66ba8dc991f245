"""`dataset add` and `channel add` beside a running data cluster: its driver validates, no second Spark is started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import two_sites

from nearcast.cluster import admin as administration
from nearcast.cluster.admin import Admin
from nearcast.cluster.driver import running_driver
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.nats.tasks import retry
from nearcast.protocol.data_cluster import DataClusterState
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")
REPORTS = DatasetSpec("reports", "id STRING NOT NULL, kind STRING", "fed.reports")
ALERTS = ChannelSpec("alerts", "SELECT r.id FROM reports r WHERE r.kind = :kind", (Parameter("kind", "string"),))


async def state(url: str) -> DataClusterState:
    connection = await open_connection([url], name="test", timeout=10)
    try:
        return await call(connection, subjects.data_cluster("state"), None, DataClusterState)
    finally:
        await connection.close()


async def test_the_driver_validates(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> SparkSession:
        raise AssertionError("a Spark of its own was started")

    monkeypatch.setattr(administration, "_validation_session", none)
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"):
        admin = await asyncio.to_thread(Admin, deployment)
        async with running_driver(spark, deployment):
            await retry(lambda: state(deployment.sites[0].url), within=60, on=NoAnswerError)  # it has begun
            for wrong, reason in (
                (DatasetSpec("bad", "id NOTHING", "fed.bad"), "dataset bad"),
                (DatasetSpec("bad", "id STRING", "fed.bad", key="name"), "key is 'name'; its columns are: id"),
            ):
                with pytest.raises(InputError, match=reason):
                    await asyncio.to_thread(admin.add_dataset, wrong)
            await asyncio.to_thread(admin.add_dataset, REPORTS)
            wrong_channel = ChannelSpec(
                "bad", "SELECT r.nothing FROM reports r WHERE r.kind = :kind", ALERTS.parameters
            )
            with pytest.raises(InputError, match="channel bad: line 1, column 8"):
                await asyncio.to_thread(admin.add_channel, wrong_channel)
            added = await asyncio.to_thread(admin.add_channel, ALERTS)  # of a dataset that was added just now
            assert added.new == "reports"
            assert "SELECT" in await asyncio.to_thread(admin.explain_channel, "alerts")
        with pytest.raises(AssertionError, match="of its own was started"):  # the data cluster has ended
            await asyncio.to_thread(admin.explain_channel, "alerts")
