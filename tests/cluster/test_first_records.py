"""What is fed as soon as a subscription is confirmed reaches it, however slowly the driver goes on from there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import Inbox, add_report_channels, feed_all, subscribe_all, two_sites, until

import nearcast
from nearcast.cluster.dataset_queries import DatasetQueries
from nearcast.cluster.driver import running_driver
from nearcast.nats.catalog import Catalog
from nearcast.site.site import run_sites
from nearcast.testing import until as condition

pytestmark = pytest.mark.xdist_group("spark")
RECORDS = 20


async def test_a_slow_start_of_the_queries_hides_no_record_from_a_scheduled_channel(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, start, kept = two_sites(tmp_path), DatasetQueries.start, threading.Event()

    def slow_start(self: DatasetQueries) -> None:
        """The step goes on when the first records are in the table, as on a machine with far too much to do."""
        start(self)
        kept.wait(60)

    monkeypatch.setattr(DatasetQueries, "start", slow_start)
    async with run_sites(deployment, tmp_path / "run"):
        await add_report_channels(deployment)
        async with nearcast.connect(deployment.sites[0].url) as client:
            subscribing = asyncio.create_task(subscribe_all(client, [("by_period", {"kind": "fire"})]))
            catalog = Catalog(client.connection, "cloud")
            await condition(lambda: catalog.held_by("edge"))
            async with running_driver(spark, deployment) as driver:
                try:
                    (inbox,) = await subscribing
                    await feed_all(client, "reports", [{"id": f"r{n}", "kind": "fire"} for n in range(RECORDS)])
                    await until(lambda: driver.position("reports"), "records in the table")
                finally:
                    kept.set()
                assert await all_rows(inbox) == sorted(f"r{n}" for n in range(RECORDS))


async def all_rows(inbox: Inbox) -> list[str]:
    """The ids of all rows; of those that came, when they do not become enough."""
    with contextlib.suppress(TimeoutError):
        await until(lambda: len(inbox.rows) >= RECORDS, "results", 40)
    return sorted(row["id"] for row in inbox.rows)
