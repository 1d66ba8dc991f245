"""The driver is killed under load, and every result is delivered exactly once; with credentials and TLS on every link.

Once with all micro-batches in the driver, once with all of them in executors. One kill by default, to keep the suite
short; more with NEARCAST_KILLS=5.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from tests.cluster.harness import (
    KINDS,
    DriverProcess,
    Inbox,
    add_report_channels,
    feed_all,
    subscribe_all,
    two_sites,
    until,
    write_configuration,
)

import nearcast
from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.roles import Grants
from nearcast.nats.identity.credentials import read_credentials
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")
CHANNELS = ("of_kind", "by_period")
KILLS = int(os.environ.get("NEARCAST_KILLS", "1"))


@pytest.mark.timeout(900 + 600 * KILLS)  # each kill costs a start of Spark
@pytest.mark.parametrize("longest_in_driver", [4000, 0], ids=["driver", "executors"])
async def test_every_result_comes_exactly_once(tmp_path: Path, longest_in_driver: int) -> None:
    deployment, rng = two_sites(tmp_path, secured=True), random.Random(11)
    auth = AuthFolder.open(tmp_path / "auth")
    car = auth.add_user("device", "car7", grants=Grants(channels=("of_kind", "by_period"), feeds=("reports",)))
    fed: list[dict[str, str]] = []
    async with run_sites(deployment, tmp_path / "run"):
        await add_report_channels(deployment, read_credentials(auth.credentials_file("admin", "main")))
        driver = DriverProcess(write_configuration(deployment, tmp_path), longest_in_driver)
        async with nearcast.connect(deployment.sites[0].url, credentials=car) as client:
            wanted = [(name, {"kind": kind}) for name in CHANNELS for kind in KINDS]
            inboxes: list[Inbox] = []

            async def load() -> None:
                while True:
                    # Not further ahead than a slow machine catches up with while the test waits.
                    await until(lambda: len(fed) < delivered() / 2 + 1000, "results", 400)
                    some = [{"id": f"r{len(fed) + n}", "kind": rng.choice(KINDS)} for n in range(20)]
                    await feed_all(client, "reports", list(some))
                    fed.extend(some)
                    await asyncio.sleep(0.1)

            def delivered() -> int:
                return sum(len(inbox.rows) for inbox in inboxes)

            def missing(channel: str) -> set[str]:
                found = {row["id"] for inbox in inboxes if inbox.name == channel for row in inbox.rows}
                return {record["id"] for record in fed} - found

            driver.start()
            try:
                await driver.ready()
                inboxes += await subscribe_all(client, wanted)
                feeding = asyncio.create_task(load())
                for _ in range(KILLS):
                    before = delivered()
                    await until(lambda before=before: delivered() > before, "results", 400)  # type: ignore[misc]
                    await asyncio.sleep(rng.uniform(0.0, 3.0))
                    driver.kill()
                    driver.start()
                await cancel_and_wait(feeding)
                # Records in flight when feeding was cancelled are fed as well; a last record marks the end.
                await client.feed("reports", {"id": "end", "kind": "none"}, timeout=30)
                await until(lambda: not any(map(missing, CHANNELS)), "the end", 400)
                await asyncio.sleep(2)
                assert await asyncio.to_thread(driver.stop) == 0
            finally:
                driver.kill()
    for name in CHANNELS:
        ids = Counter(i for inbox in inboxes if inbox.name == name for i in inbox.ids)
        rows = Counter(row["id"] for inbox in inboxes if inbox.name == name for row in inbox.rows)
        assert max(ids.values()) == 1, "a result was delivered twice"
        assert max(rows.values()) == 1, "a record was reported twice"
        assert {record["id"] for record in fed} <= rows.keys(), "a record was not reported"
    assert executors_wrote(tmp_path / "warehouse") == (longest_in_driver == 0)
    assert refusals(tmp_path / "run") == []  # Spark's workers, too, connected as the data cluster's user


def refusals(folder: Path) -> list[str]:
    """What brokers and stores refused."""
    logs = [file.read_text(errors="replace") for file in folder.glob("*/*.log")]
    return [line for text in logs for line in text.splitlines() if "Violation" in line]


def executors_wrote(warehouse: Path) -> bool:
    """The names of files that executors wrote end with the first sequence of a task."""
    return any(file.stem.count("-") == 2 for file in warehouse.glob("datasets/reports/data/*/*.parquet"))
