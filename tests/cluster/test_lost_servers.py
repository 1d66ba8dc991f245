"""The cloud's store and its broker are killed with requests of the data cluster in flight: it goes on soon after."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import add_report_channels, feed_all, subscribe_all, two_sites, until
from tests.suspend import suspend

import nearcast
from nearcast.cluster.driver import running_driver
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")
# Each request without an answer took 30 s to fail, and the query was started again after it.
SOON = 20.0


@pytest.mark.parametrize("server", ["store", "broker"])
async def test_results_come_soon_after_a_server_of_the_cloud_was_killed(
    spark: SparkSession, tmp_path: Path, server: str
) -> None:
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run") as sites:
        await add_report_channels(deployment)
        async with nearcast.connect(deployment.sites[0].url) as client, running_driver(spark, deployment) as driver:
            inboxes = await subscribe_all(client, [(name, {"kind": "fire"}) for name in ("of_kind", "by_period")])
            await feed_all(client, "reports", [{"id": f"r{n}", "kind": "fire"} for n in range(10)])
            await until(lambda: all(len(inbox.rows) == 10 for inbox in inboxes), "results")
            process = getattr(sites["cloud"], server)
            suspend(process.pid)  # requests come in and are not answered
            feeding = asyncio.create_task(
                feed_all(client, "reports", [{"id": f"s{n}", "kind": "fire"} for n in range(10)])
            )
            await asyncio.sleep(1.5)
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: process.restarts == 1, "the server is back")
            back = time.monotonic()
            await feeding
            await until(lambda: all(len(inbox.rows) >= 20 for inbox in inboxes), "results")
            took = time.monotonic() - back
            for inbox in inboxes:
                assert sorted(row["id"] for row in inbox.rows) == sorted(f"{p}{n}" for p in "rs" for n in range(10))
                assert len(set(inbox.ids)) == len(inbox.ids)
            assert driver.progress.snapshot()["reports"].problem == "", "the query went on"
            assert took < SOON
