"""A lost checkpoint, position, table log or table, retention that has passed, a second driver: each ends in a correct
table, and no result comes twice. When all of it is lost at once, the table is as correct; results come again."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import Inbox, add_report_channels, feed_all, subscribe_all, two_sites, until

import nearcast
from nearcast.cluster.driver import Driver, running_driver
from nearcast.domain.deployment import Deployment
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")
FED = 10
LOST = 4


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


ACCIDENTS: dict[str, Callable[[Path], None]] = {
    "nothing is lost": lambda folder: None,
    "the checkpoint": lambda folder: remove(folder / "checkpoints"),
    "the note of the position": lambda folder: remove(folder / "datasets/reports/state.json"),
    "the table's log": lambda folder: remove(folder / "datasets/reports/data/_delta_log"),
    "the table": lambda folder: remove(folder / "datasets/reports/data"),
    "the results": lambda folder: remove(folder / "results"),
}


async def purge(deployment: Deployment, before: int) -> None:
    """As if records had been in the stream for longer than it keeps them."""
    connection = await open_connection([deployment.cloud().store_url], name="retention")
    await connection.jsm().purge_stream(subjects.feed_stream("reports"), seq=before)
    await connection.close()


@pytest.mark.timeout(600)
async def test_every_accident_ends_in_a_correct_table(spark: SparkSession, tmp_path: Path) -> None:
    deployment, folder = two_sites(tmp_path), tmp_path / "warehouse"
    fed: list[str] = []
    async with run_sites(deployment, tmp_path / "run"):
        await add_report_channels(deployment)
        async with nearcast.connect(deployment.sites[0].url) as client:

            async def feed() -> None:
                some = [f"r{len(fed) + n}" for n in range(FED)]
                await feed_all(client, "reports", [{"id": name, "kind": "fire"} for name in some])
                fed.extend(some)

            async def in_table(driver: Driver) -> None:
                await until(lambda: driver.position("reports") == len(fed), "the records in the table")

            inbox: Inbox | None = None
            for what, damage in ACCIDENTS.items():
                if inbox is not None:
                    damage(folder)
                    await feed()  # while no driver runs
                async with running_driver(spark, deployment) as driver:
                    if inbox is None:
                        (inbox,) = await subscribe_all(client, [("of_kind", {"kind": "fire"})])
                    await feed()
                    await in_table(driver)
                    received = inbox
                    await until(lambda received=received: len(received.rows) >= len(fed), what)  # type: ignore[misc]
                check_table(folder, fed, what)
                assert Counter(row["id"] for row in inbox.rows) == Counter(fed), what
            # Unread records leave the stream; what was read stays in the table.
            await feed()
            gone = fed[-FED : -FED + LOST]
            await purge(deployment, len(fed) - FED + LOST + 1)
            async with running_driver(spark, deployment) as driver:
                await in_table(driver)
                second = await asyncio.to_thread(Driver, spark, deployment)
                with pytest.raises(InputError, match="run by another driver already"):
                    await asyncio.to_thread(second.__enter__)
                await feed()
                await in_table(driver)
            check_table(folder, [name for name in fed if name not in gone], "retention")
            assert pl.read_delta(str(folder / "datasets/reports/quarantine"))["removed"].sum() == LOST
            # Nothing is left but the stream: the table is made again, and everything is answered again.
            for name in ("checkpoints", "datasets"):
                remove(folder / name)
            async with running_driver(spark, deployment) as driver:
                await in_table(driver)
            check_table(folder, fed[-2 * FED + LOST :], "all that the driver has kept")


def check_table(folder: Path, expected: list[str], what: str) -> None:
    found = pl.read_delta(str(folder / "datasets/reports/data"))
    assert Counter(found["id"]) == Counter(expected), what
    assert found["_sequence"].n_unique() == len(found), what
