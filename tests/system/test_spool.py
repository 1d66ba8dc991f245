"""A publisher with a spool keeps what no quorum has acknowledged, through cuts and kills, and sends it in order."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.system.link import link_to

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until

SPEC = TopicSpec("meter", replicas=("tokyo", "osaka", "cloud"), quorum=2)
DEVICE = """
import asyncio, sys, nearcast
async def main():
    async with nearcast.connect("{url}", name="device", spool="{spool}") as client:
        print((await client.publish("meter", {{"n": 0}})).id, flush=True)
        sys.stdin.readline()  # the link is cut now
        for n in range(1, 51):
            await client.publish_nowait("meter", {{"n": n}})
        print("kept", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def kept(client: nearcast.Client) -> list[int]:
    return [message.data["n"] async for message in client.history("meter")]


async def test_what_a_killed_publisher_had_in_its_spool_is_sent_by_the_next_process(city, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    async with city(SPEC) as c, link_to(c.sites["tokyo"].spec.port) as link:
        device = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            DEVICE.format(url=link.url, spool=spool),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert device.stdin is not None
        assert device.stdout is not None
        assert (await device.stdout.readline()).startswith(b"device~")
        link.cut()
        device.stdin.write(b"go\n")
        assert await device.stdout.readline() == b"kept\n"
        device.send_signal(signal.SIGKILL)
        await device.wait()
        link.restore()
        async with nearcast.connect(link.url, name="device", spool=spool) as client:
            await until(lambda: client.spooled == 0, limit=60)
            await client.publish("meter", {"n": 51})
            assert await kept(client) == list(range(52)), "each once, in order"
        assert spool.stat().st_size == 0


async def test_receipts_come_when_the_stores_are_back(city, tmp_path: Path) -> None:
    async with city(SPEC) as c, nearcast.connect(c.url("tokyo"), spool=tmp_path / "spool") as client:
        first = await client.publish("meter", {"n": 0})
        assert not first.synced
        for site in ("osaka", "cloud"):
            await c.sites[site].store.stop()
        receipts = [await client.publish_nowait("meter", {"n": n}) for n in range(1, 21)]
        await asyncio.sleep(7)  # longer than an attempt
        assert client.spooled == 20
        assert not any(receipt.done() for receipt in receipts)
        await c.sites["osaka"].store.start()
        async with asyncio.timeout(60):
            answered = [await receipt for receipt in receipts]
        assert all(len(receipt.stores) >= 2 for receipt in answered)
        assert client.spooled == 0
        assert await kept(client) == list(range(21))
