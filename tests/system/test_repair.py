"""Stores that were away, lost their disk or have damaged files get what they lack from the others, by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.system.control import coordinator

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.streams import StreamError, StreamReader
from nearcast.site.site import Site
from nearcast.testing import RunningSites, until

LOG = TopicSpec("log", replicas=("tokyo", "osaka", "cloud"), quorum=2)


async def fill(client: nearcast.Client, start: int, end: int) -> None:
    receipts = [await client.publish_nowait("log", {"n": n}, timeout=60) for n in range(start, end)]
    for receipt in receipts:
        await receipt


@asynccontextmanager
async def reading_from(c: RunningSites, site: str) -> AsyncIterator[nearcast.Client]:
    async with nearcast.connect(c.url(site), name=f"reader-{site}") as client:
        yield client


async def stored_at(c: RunningSites, site: str, connection) -> list[tuple[int, bytes, bytes]]:
    """What a store has, read without any of the code under test: time, id and payload, in the order of history."""
    reader = StreamReader(connection, subjects.store_api(site))
    try:
        entries = await reader.read_range("log", "pub.log", 1, 1 << 40)
    except StreamError:  # the store is only just starting
        return []
    return sorted((entry.time_us, entry.id, entry.payload) for entry in entries)


def behind(c: RunningSites, site: str) -> bool:
    services = c.sites[site].agent.client_services.store
    return services is None or services.repair.behind("log")


async def kill(site: Site) -> None:
    """kill -9 of the store, which stays away."""
    os.kill(site.store.pid, signal.SIGKILL)
    await site.store.stop()


def lose_disk(site: Site) -> None:
    for folder in Path(site.spec.store.directory).iterdir():
        shutil.rmtree(folder)


def damage(site: Site, *payloads: bytes) -> None:
    """Flip a byte of each payload in the file that holds it."""
    (block,) = Path(site.spec.store.directory).rglob("*/log/msgs/*.blk")
    content = bytearray(block.read_bytes())
    for payload in payloads:
        content[content.index(payload) + 2] ^= 0xFF
    block.write_bytes(content)


async def agree(c: RunningSites, client: nearcast.Client, count: int) -> None:
    """No store is behind in the end, and all have the same messages."""
    await until(lambda: not any(behind(c, site) for site in LOG.replicas), 120)
    connection = client._sessions.connection()
    found: list[list[tuple[int, bytes, bytes]]] = []

    async def same() -> bool:
        found[:] = [await stored_at(c, site, connection) for site in LOG.replicas]
        await asyncio.sleep(0.5)
        return all(len(one) == count and one == found[0] for one in found)

    try:
        await until(same, 120)
    except AssertionError:
        raise AssertionError([len(one) for one in found]) from None


async def test_a_store_that_was_away_has_what_it_missed_and_gives_the_same_history(city) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("cloud"), name="writer") as client:
        await fill(client, 0, 500)
        await kill(c.sites["tokyo"])
        await fill(client, 500, 2500)
        await c.sites["tokyo"].store.start()
        await fill(client, 2500, 3000)
        await agree(c, client, 3000)
        histories = []
        for site in LOG.replicas:
            async with reading_from(c, site) as reader:
                query = reader.history("log")
                histories.append([(message.id, message.published, message.data["n"]) async for message in query])
                assert query.store == site or not query.incomplete
        assert [n for _, _, n in histories[0]] == list(range(3000))
        assert histories[0] == histories[1] == histories[2]


async def test_a_site_that_was_away_replays_without_a_gap(city) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("cloud"), name="writer") as client:
        await fill(client, 0, 100)
        await c.sites["tokyo"].stop()
        await fill(client, 100, 600)
        await c.sites["tokyo"].start()
        await fill(client, 600, 700)
        for _ in range(10):  # a reader chooses among stores at about the same distance
            async with reading_from(c, "tokyo") as reader, reader.subscribe("log", replay=True) as subscription:
                got: list[int] = []
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(60):
                        while len(got) < 700:
                            got.append((await anext(subscription)).data["n"])
                assert got == list(range(700))


@pytest.mark.parametrize("restarted", ["store", "site"])
async def test_a_store_whose_disk_is_lost_never_answers_with_nothing(city, restarted: str) -> None:
    """Before, a site that started made an empty stream and advertised it."""
    async with city(LOG) as c, nearcast.connect(c.url("cloud"), name="writer") as client:
        await fill(client, 0, 1000)
        tokyo = c.sites["tokyo"]
        await kill(tokyo)
        if restarted == "site":
            await tokyo.stop()
        lose_disk(tokyo)
        await (tokyo if restarted == "site" else tokyo.store).start()
        async with reading_from(c, "tokyo") as reader:
            for _ in range(20):
                query = reader.history("log")
                found = [message async for message in query]
                # A site that has just started may not have heard of another store yet; it says what it lacks.
                assert len(found) == 1000 or (restarted == "site" and query.incomplete)
                await asyncio.sleep(0.1)
        await agree(c, client, 1000)


async def test_damaged_messages_are_noticed_and_repaired(city) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("cloud"), name="writer") as client:
        await fill(client, 0, 200)
        await agree(c, client, 200)
        tokyo = c.sites["tokyo"]
        await tokyo.store.stop()
        damage(tokyo, b'{"n":50}', b'{"n":120}')
        await tokyo.store.start()
        # Where the damage is found at the next scan only; the server reads a stream that was closed in order as it is.
        tokyo.agent.client_services.store.tail.rescan("log")

        async def repaired() -> bool:
            found = await stored_at(c, "tokyo", client._sessions.connection())
            return len(found) == 200 and not behind(c, "tokyo")

        await until(repaired, 90)
        await agree(c, client, 200)


async def test_a_store_that_is_alone_says_that_its_history_may_be_incomplete(city) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("cloud"), name="writer") as client:
        await fill(client, 0, 100)
        await agree(c, client, 100)
        for site in ("osaka", "cloud"):
            await c.sites[site].store.stop()
        await until(lambda: behind(c, "tokyo"))
        query = client.history("log")
        assert len([message async for message in query]) == 100
        assert query.incomplete
        for site in ("osaka", "cloud"):
            await c.sites[site].store.start()
        await agree(c, client, 100)
        query = client.history("log")
        assert len([message async for message in query]) == 100
        assert not query.incomplete


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Tokyo's store directory on a file system of 64 MiB."""
    folder = tmp_path / "stores" / "tokyo"
    folder.mkdir(parents=True)
    mounting = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_store_whose_disk_was_full_works_again_when_there_is_room(city, small_disk: Path) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("cloud"), name="writer") as client:
        ballast = small_disk / "ballast"
        fill_disk(ballast, 58 << 20)
        for n in range(100):
            await client.publish("log", {"n": n, "text": "x" * 100_000}, timeout=60)
        tokyo = c.sites["tokyo"]
        assert len(await stored_at(c, "tokyo", client._sessions.connection())) < 100
        restarts = tokyo.store.restarts
        await asyncio.sleep(2)
        assert tokyo.store.restarts == restarts, "not while a restart would not help"
        free_disk(ballast)
        await until(lambda: tokyo.store.restarts > restarts, 60)
        await client.publish("log", {"n": 100}, timeout=60)
        await agree(c, client, 101)


async def test_a_store_whose_disk_is_full_is_down_for_the_operator(city, small_disk: Path, caplog) -> None:
    """It answers requests as ever, so that everything said that it was up; only its own log told."""
    only_here = TopicSpec("log", replicas=("tokyo",), quorum=1)
    async with city(only_here, report_seconds=0.3) as c, coordinator(c, site_lost_after=4.0) as control:
        caplog.set_level(logging.INFO)
        ballast, tokyo = small_disk / "ballast", c.sites["tokyo"]
        url = f"http://{tokyo.spec.metrics_host}:{tokyo.spec.metrics_port}/metrics"

        async def states() -> tuple[str, str, bool, bool]:
            """Of `site ls`, `coordinator status` (the stores, and whether there is an anomaly) and the metrics."""
            sites = {row["site"]: row["store_state"] for row in await control.ask("site", "ls")}
            status = await control.ask("coordinator", "status")
            with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
                up = "nearcast_store_up 1.0" in answer.read().decode()
            return sites["tokyo"], " ".join(status["stores_down"]), "store lost" in status["anomalies"], up

        async def shows(*expected: str | bool) -> bool:
            return await states() == expected

        await until(lambda: shows("up", "", False, True))
        fill_disk(ballast, 60 << 20)
        async with nearcast.connect(c.url("cloud"), name="writer") as client:
            large = {"text": "x" * 100_000}
            with pytest.raises(nearcast.QuorumError, match="missing: tokyo"):
                await asyncio.gather(*(client.publish("log", large, timeout=10) for _ in range(60)))
            await until(lambda: shows("down", "tokyo", True, False))
            assert "the store of site tokyo cannot write" in caplog.text
            free_disk(ballast)
            await until(lambda: shows("up", "", False, True), 60)
            assert "the store of site tokyo writes again" in caplog.text
            await client.publish("log", 1, timeout=60)


def fill_disk(ballast: Path, size: int) -> None:
    ballast.write_bytes(bytes(size))


def free_disk(ballast: Path) -> None:
    ballast.unlink()
