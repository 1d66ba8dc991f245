"""The paper's emergency application on real servers: every notification compared with a plain-Python oracle."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession
from tests.cluster.emergency import CHANNELS, DATASETS, counted, expected, make_world
from tests.cluster.harness import Inbox, feed_all, subscribe_all, two_sites, until

import nearcast
from nearcast.cluster.admin import Admin
from nearcast.cluster.driver import running_driver
from nearcast.cluster.nats_source import driver_read
from nearcast.errors import InputError
from nearcast.site.site import run_sites

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


def by_id(rows: list[dict[str, object]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


@pytest.mark.parametrize("longest_in_driver", [4000, 30], ids=["driver", "executors"])
async def test_no_notification_is_missing_extra_or_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest_in_driver: int
) -> None:
    monkeypatch.setattr(driver_read, "_MOST", longest_in_driver)  # longer batches are the executors'
    deployment = two_sites(tmp_path)
    moment = datetime.now(UTC)
    now, old = moment.isoformat(), (moment - timedelta(hours=2)).isoformat()
    world = make_world(seed=4, reports=300, now=now, old=old)
    (tmp_path / "shelters.jsonl").write_text("\n".join(json.dumps(shelter) for shelter in world.shelters))
    async with run_sites(deployment, tmp_path / "run"):
        admin = await asyncio.to_thread(Admin, deployment)
        for dataset in DATASETS:
            await asyncio.to_thread(admin.add_dataset, dataset, spark)
        await asyncio.to_thread(admin.load_dataset, "shelters", tmp_path / "shelters.jsonl", spark)
        for channel in CHANNELS:
            await asyncio.to_thread(admin.add_channel, channel, spark)
        edge, cloud = (site.url for site in deployment.sites)
        async with running_driver(spark, deployment) as running, nearcast.connect(edge) as client:
            # The same subscriptions twice at one site and once at another: each gets all results, the table one row.
            inboxes = await subscribe_all(client, world.subscriptions)
            inboxes += await subscribe_all(client, world.subscriptions[:8])
            async with nearcast.connect(cloud) as other:
                inboxes += await subscribe_all(other, world.subscriptions[:8])
                rows = {name: len([1 for n, _ in world.subscriptions if n == name]) for name, _ in world.subscriptions}
                await until(lambda: running.subscribed() == rows, "the subscription tables")
                # A user moves: only the last location counts.
                await feed_all(client, "locations", [dict(place, lat=0.0) for place in world.locations])
                await feed_all(client, "locations", world.locations)
                await until(lambda: running.position("locations") == 2 * len(world.locations), "the locations")
                bad = [b"not json", {"id": "x"}, {"id": 7, "kind": "fire"}]
                for start in range(0, 300, 100):
                    await feed_all(client, "reports", world.reports[start : start + 100] + bad[start // 100 :][:1])
                await until(lambda: running.position("reports") == 303, "the reports")

                def complete(inbox: Inbox) -> bool:
                    if inbox.name == "counts":
                        return bool(inbox.results) and latest(inbox) == counted(world, inbox.params["area"], now)
                    return len(inbox.rows) >= len(expected(world, inbox.name, inbox.params))

                await until(lambda: all(map(complete, inboxes)), "all results")
            for inbox in inboxes:
                assert len(set(inbox.ids)) == len(inbox.ids), "a result came twice"
                if inbox.name != "counts":
                    assert by_id(inbox.rows) == by_id(expected(world, inbox.name, inbox.params)), inbox.params
            # A late subscriber replays the same results.
            late = await client.subscribe(channel="of_kind", params={"kind": "fire"}, replay=True)
            again: list[dict[str, object]] = []
            while len(again) < len(expected(world, "of_kind", {"kind": "fire"})):
                again += (await asyncio.wait_for(anext(late), 150)).data["rows"]
            assert by_id(again) == by_id(expected(world, "of_kind", {"kind": "fire"}))
            await refusals(client, admin)
            # The other client has left: its rows stay only where this client holds them, too; then it leaves.
            await late.close()
        quarantined = pl.read_delta(str(tmp_path / "warehouse/datasets/reports/quarantine")).to_dicts()
        reasons = sorted(row["reason"] for row in quarantined)
        assert reasons == ["a JSON object is needed", "field id is number, not string", "field kind is missing"]
        kept = pl.read_delta(str(tmp_path / "warehouse/datasets/reports/data")).to_dicts()
        assert sorted(row["id"] for row in kept) == sorted(report["id"] for report in world.reports)
        assert len({row["_day"] for row in kept}) in (1, 2)


def latest(inbox: Inbox) -> dict[str, int]:
    return {row["kind"]: row["n"] for row in inbox.results[-1]["rows"]}


async def refusals(client: nearcast.Client, admin: Admin) -> None:
    """Wrong input is refused in one clear sentence, without side effects."""
    with pytest.raises(InputError, match="there is no channel 'nowhere'; there are: by_period, counts"):
        await client.subscribe(channel="nowhere", params={})
    with pytest.raises(InputError, match="channel of_kind, parameter kind is 5; string is needed"):
        await client.subscribe(channel="of_kind", params={"kind": 5})
    with pytest.raises(InputError, match="parameter 'kind' is missing"):
        await client.subscribe(channel="of_kind", params={})
    with pytest.raises(InputError, match="dataset 'shelters' is loaded as a whole"):
        await client.feed("shelters", {})
    with pytest.raises(InputError, match="dataset 'reports' is read by channel"):
        await asyncio.to_thread(admin.remove_dataset, "reports")
