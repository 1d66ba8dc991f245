"""A full disk and a damaged checkpoint: one clear sentence each, and no record lost or delivered twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import feed_all, subscribe_all, two_sites, until

import nearcast
from nearcast.cluster.admin import Admin
from nearcast.cluster.driver import Driver, running_driver
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.deployment import ClusterSpec, Deployment
from nearcast.nats.catalog import CHANNELS, DATASETS, SUBSCRIPTIONS
from nearcast.nats.kv import BucketError
from nearcast.site.site import run_sites

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.asynccontextmanager
async def channel_of_ids(spark: SparkSession, deployment: Deployment) -> AsyncIterator[nearcast.Client]:
    """A channel of ids by kind."""
    admin = await asyncio.to_thread(Admin, deployment)
    await asyncio.to_thread(admin.add_dataset, DatasetSpec("reports", "id STRING, kind STRING", "fed.reports"), spark)
    query = "SELECT r.id FROM reports r WHERE r.kind = :kind"
    channel = ChannelSpec("of_kind", query, (Parameter("kind", "string"),), None, "reports")
    await asyncio.to_thread(admin.add_channel, channel, spark)
    async with nearcast.connect(deployment.sites[0].url) as client:
        yield client


def problem(driver: Driver) -> str:
    counts = driver.progress.snapshot()
    return counts["reports"].problem if "reports" in counts else ""


async def test_a_record_fed_right_after_the_subscription_began_reaches_it(spark: SparkSession, tmp_path: Path) -> None:
    deployment = two_sites(tmp_path)
    async with (
        run_sites(deployment, tmp_path / "run"),
        channel_of_ids(spark, deployment) as client,
        running_driver(spark, deployment) as driver,
    ):
        for n in range(3):
            async with client.subscribe(channel="of_kind", params={"kind": f"kind{n}"}) as results:
                await client.feed("reports", {"id": f"r{n}", "kind": f"kind{n}"}, timeout=30)
                async with asyncio.timeout(200):  # the first micro-batch of a busy machine
                    assert (await anext(results)).data["rows"] == [{"id": f"r{n}"}]
        await until(lambda: driver.position("reports") == 3, "the records in the table")
        await replay_to_one_subscriber(spark, deployment, client)


async def replay_to_one_subscriber(spark: SparkSession, deployment: Deployment, client: nearcast.Client) -> None:
    """A channel over the past: only what came since then, for one set of values or for all subscriptions."""
    admin, values = await asyncio.to_thread(Admin, deployment), {"kind": "kind1"}
    past, future = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))

    def replayed(since: datetime, values: dict[str, Any] | None, publish: bool = False) -> list[object]:
        results = admin.replay_channel("of_kind", since, values, publish, spark)
        return [json.loads(payload)["rows"] for payload in results["payload"].to_pylist()]

    assert await asyncio.to_thread(replayed, future, values) == []
    with pytest.raises(nearcast.NearcastError, match="channel of_kind, parameter kind is 7; string is needed"):
        await asyncio.to_thread(replayed, past, {"kind": 7})
    async with client.subscribe(channel="of_kind", params=values) as results:
        assert [{"id": "r1"}] in await asyncio.to_thread(replayed, past, None)
        assert await asyncio.to_thread(replayed, past, values, True) == [[{"id": "r1"}]]
        async with asyncio.timeout(150):
            assert (await anext(results)).data["rows"] == [{"id": "r1"}], "it has seen the result before, by its id"


async def test_a_subscription_that_no_data_cluster_takes_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nearcast.client.subscribing._ACTIVE_WITHIN", 1.0, raising=False)
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"), channel_of_ids(spark, deployment) as client:
        subscribing = [client.subscribe(channel="of_kind", params={"kind": f"k{n}"}) for n in range(300)]
        refusals = await asyncio.gather(*subscribing, return_exceptions=True)
        told = {str(refusal) for refusal in refusals if isinstance(refusal, nearcast.NearcastError)}
        assert len(told) == 1, "each is told the same, in time, however many wait"
        assert "did not take the subscription within 1 s" in told.pop()


async def test_a_failure_is_reported_in_one_sentence_and_recovered_from(
    spark: SparkSession, tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = replace(two_sites(tmp_path), cluster=ClusterSpec(str(small_disk / "w"), analyse_every=0))
    async with run_sites(deployment, tmp_path / "run"), channel_of_ids(spark, deployment) as client:

        async def feed(first: int, count: int) -> None:
            await feed_all(client, "reports", [{"id": f"r{n}", "kind": "fire"} for n in range(first, first + count)])

        async with running_driver(spark, deployment) as driver:
            (inbox,) = await subscribe_all(client, [("of_kind", {"kind": "fire"})])
            await feed(0, 10)
            await until(lambda: len(inbox.rows) == 10, "results")
            with monkeypatch.context() as patch:  # maintenance reports any error and ends
                patch.setattr(driver._datasets, "tidy", lambda: 1 / 0)
                driver._maintain()
            filler = small_disk / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
                while stream.write(b"x" * 4096):
                    pass
            await feed(10, 10)
            await until(lambda: problem(driver), "the full disk")
            assert problem(driver).endswith("the disk is full")
            assert "\n" not in problem(driver)
            filler.unlink()
            await until(lambda: len(inbox.rows) == 20, "results after the disk has room")
        (checkpoint,) = (small_disk / "w/checkpoints").iterdir()
        newest = max((checkpoint / "offsets").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
        newest.write_bytes(b"no such thing")
        async with running_driver(spark, deployment) as driver:
            await until(lambda: problem(driver), "the damaged checkpoint")
            assert problem(driver).startswith("its checkpoint is damaged: remove its folder below `checkpoints`")
            await feed(20, 10)
            for path in sorted(checkpoint.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            await until(lambda: len(inbox.rows) == 30, "results after the checkpoint is gone")
    assert sorted(row["id"] for row in inbox.rows) == sorted(f"r{n}" for n in range(30))
    assert len(set(inbox.ids)) == len(inbox.ids)


BAD_DATASETS = {
    "bytes": b"\x00\xff",
    "other": msgspec.json.encode(DatasetSpec("reports", "id STRING", "fed.reports")),
    "path": msgspec.json.encode(DatasetSpec("../../path", "id STRING", "fed.path")),
    "deep": msgspec.json.encode(DatasetSpec("deep", "`" + ">" * 2500 + "` INT, a " + "ARRAY<" * 2500, "fed.deep")),
    "untyped": msgspec.json.encode(DatasetSpec("untyped", "id NOTHING", "fed.untyped")),
    "precise": msgspec.json.encode(DatasetSpec("precise", "id DECIMAL(99, 9)", "fed.precise")),
    "unloaded": msgspec.json.encode(DatasetSpec("unloaded", "id STRING", version=7)),
    "unstored": msgspec.json.encode(DatasetSpec("unstored", "id STRING", "pub.no.such.topic")),
    "unfed": msgspec.json.encode(DatasetSpec("unfed", "id STRING", "fed.unfed")),
}
ATTACK = "java_method('java.lang.System', 'exit', 3)"


async def noted_fault(admin: Admin, driver: Driver, name: str, site: str) -> str:
    """The reason that the catalog has for a fault, waited for; meanwhile a site without an agent keeps its lease."""
    async with asyncio.timeout(150):
        while name not in (faults := await asyncio.to_thread(admin.faults)):
            await asyncio.to_thread(driver._connection.call, driver._catalog.renew(site))
            await asyncio.sleep(0.1)
    return faults[name]


async def test_what_a_user_writes_harms_nobody_else(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that looks like code, a division by zero, and garbage in the catalog: the others lose nothing."""
    deployment = two_sites(tmp_path)
    bad = (
        ("after", "SELECT r.id FROM reports r WHERE r.id > :x", "string"),
        ("divided", "SELECT r.id FROM reports r WHERE length(r.id) / :x > 0", "int"),
        ("commented", "SELECT r.id, length(r.id) - :x AS rest FROM reports r WHERE r.kind = 'fire' -- all", "int"),
    )
    async with run_sites(deployment, tmp_path / "run"), channel_of_ids(spark, deployment) as client:
        admin = await asyncio.to_thread(Admin, deployment)
        for name, query, kind in bad:
            spec = ChannelSpec(name, query, (Parameter("x", kind),), None, "reports")
            await asyncio.to_thread(admin.add_channel, spec, spark)
        async with running_driver(spark, deployment) as driver:
            wanted: list[tuple[str, dict[str, object]]] = [("of_kind", {"kind": "fire"}), ("after", {"x": ATTACK})]
            wanted += [("divided", {"x": x}) for x in (1, 0, 2)] + [("commented", {"x": 1})]
            fire, _, one, zero, two, commented = await subscribe_all(client, wanted)
            connection = driver._connection
            connection.call(connection.connection.flush())
            note, failures = driver._catalog.note_fault, [BucketError("no answer")]

            async def note_later(*args: str) -> None:
                if failures:
                    raise failures.pop()
                await note(*args)

            monkeypatch.setattr(driver._catalog, "note_fault", note_later)  # the store is away when it is told first
            # Of a site that has no agent: an agent removes the subscriptions that none of its clients renews.
            bad_entries = (("of_kind.zz.none", b"\x00"), ("of_kind.yy.none", b'{"kind": 7}'), ("x.y.z", b"[]"))
            for key, value in bad_entries:
                connection.call(driver._catalog._buckets[SUBSCRIPTIONS].put(key, value))
            connection.call(driver._catalog._buckets[CHANNELS].put("broken", b"\x01"))
            for name, value in BAD_DATASETS.items():
                connection.call(driver._catalog._buckets[DATASETS].put(name, value))
            reason = await noted_fault(admin, driver, "of_kind.yy", "none")
            assert reason == "channel of_kind, parameter kind is 7; string is needed"
            assert not failures
            for n in range(4):
                await feed_all(client, "reports", [{"id": f"r{n}{m}", "kind": "fire"} for m in range(5)])
                await until(lambda n=n: len(fire.rows) == 5 * n + 5, "results")  # type: ignore[misc]
            for inbox in (fire, one, two, commented):
                await until(lambda inbox=inbox: len(inbox.rows) == 20, f"all rows of {inbox.name}")  # type: ignore[misc]
            await until(lambda: zero.results, "the reason")
            assert "Division by zero" in zero.results[0]["error"]
            state = driver.progress.snapshot()
            assert state["reports"].problem == ""
            assert [name for name in BAD_DATASETS if not state[name].problem] == []
            connection.call(driver._catalog._buckets[DATASETS].put("reports", b"\x00"))
            await until(lambda: "unreadable" in driver.progress.snapshot()["reports"].problem, "the lost entry")
            await feed_all(client, "reports", [{"id": f"r9{m}", "kind": "fire"} for m in range(5)])
            await until(lambda: len(fire.rows) == 25, "results of the dataset as it was")
            faults = await asyncio.to_thread(admin.faults)
            assert "divided" in {name.split(".")[0] for name in faults}
            async with nearcast.connect(deployment.cloud().url) as other:
                with pytest.raises(nearcast.NearcastError, match=r"is switched off: .*Division by zero"):
                    await other.subscribe(channel="divided", params={"x": 0})
