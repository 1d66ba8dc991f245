"""Subscribers of durable topics miss nothing: not while they are cut off, not when they are too slow for the broker."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec
from tests.system.link import link_to

import nearcast
from nearcast.client.cursor import CursorState
from nearcast.domain.topic import TopicSpec
from nearcast.testing import RunningSites, until

EVERYWHERE = ("tokyo", "osaka", "cloud")


def port(c: RunningSites, site: str) -> int:
    return c.sites[site].spec.port


async def publish(client: nearcast.Client, topic: str, numbers: range) -> list[str]:
    waiting = [await client.publish_nowait(topic, {"n": n}, timeout=20) for n in numbers]
    return [(await one).id for one in waiting]


async def test_a_subscriber_that_was_cut_from_its_home_gets_what_was_published_meanwhile(city) -> None:
    async with (
        city(TopicSpec("alert", replicas=EVERYWHERE, quorum=2)) as c,
        link_to(port(c, "tokyo")) as link,
        nearcast.connect(link.url) as reader,
        nearcast.connect(c.url("osaka")) as writer,
        reader.subscribe("alert") as alerts,
    ):
        await c.interest_settled()
        sent = await publish(writer, "alert", range(100))
        await until(lambda: alerts.received == 100)
        link.cut()
        while reader.connection.is_connected:  # its pings stay without an answer
            sent += await publish(writer, "alert", range(len(sent), len(sent) + 20))
            await asyncio.sleep(0.2)
        link.restore()
        await until(lambda: reader.reconnects == 1, limit=60)
        await reader.flush()
        await c.interest_settled()
        sent += await publish(writer, "alert", range(len(sent), len(sent) + 50))
        await until(lambda: alerts.received >= len(sent), limit=60)
        got = [await anext(alerts) for _ in range(alerts.pending)]
        assert [message.id for message in got] == sent, "each once, in the order of their publisher"
        late = [message.late for message in got]
        assert alerts.filled == sum(late) > 0
        assert not late[0]
        assert not late[-1]


async def test_a_subscriber_whose_loop_blocks_gets_what_the_broker_threw_away(city) -> None:
    async with (
        city(TopicSpec("image", replicas=("cloud",), quorum=1)) as c,
        nearcast.connect(c.url("cloud")) as writer,
    ):
        reader = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            READER.format(url=c.url("tokyo"), number=IMAGES),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert await reader.stdout.readline() == b"blocks\n"
        await c.interest_settled()
        for _ in range(IMAGES):  # more than a broker keeps for a client that does not read
            await writer.publish("image", bytes(1_000_000), timeout=60)
        reader.stdin.write(b"go on\n")
        result = json.loads(await reader.stdout.readline())
        await reader.wait()
        assert result["reconnects"] > 0, "the broker cut it off"
        assert result["received"] == IMAGES
        assert result["filled"] > 0


IMAGES = 120
READER = """
import asyncio, json, sys, nearcast
async def main():
    async with nearcast.connect("{url}") as client, client.subscribe("image") as images:
        print("blocks", flush=True)
        sys.stdin.readline()
        for _ in range(600):
            await asyncio.sleep(0.1)
            if images.received >= {number}:
                break
        await asyncio.sleep(3)
        print(json.dumps(dict(received=images.received, filled=images.filled, dropped=images.dropped,
                              reconnects=client.reconnects)), flush=True)
asyncio.run(main())
"""


CURSOR_READER = """
import asyncio, nearcast
from pathlib import Path
async def main():
    async with nearcast.connect("{url}") as client:
        async with client.subscribe("alert", cursor=Path("{cursor}"), replay=True) as alerts:
            print("ready", flush=True)
            async for message in alerts:
                print(message.id, flush=True)
asyncio.run(main())
"""


def saved(cursor: Path, message_id: str) -> bool:
    """Whether a cursor says that a message was read."""
    if not cursor.exists():
        return False
    return message_id.encode() in msgspec.msgpack.decode(cursor.read_bytes(), type=CursorState).recent


async def test_a_killed_subscriber_goes_on_at_its_cursor(city, tmp_path: Path) -> None:
    async with (
        city(TopicSpec("alert", replicas=("tokyo",), quorum=1), names=("tokyo",)) as c,
        nearcast.connect(c.url("tokyo")) as writer,
    ):

        async def start() -> asyncio.subprocess.Process:
            code = CURSOR_READER.format(url=c.url("tokyo"), cursor=tmp_path / "cursor")
            reader = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
            assert reader.stdout is not None
            assert await reader.stdout.readline() == b"ready\n"
            return reader

        async def read(reader: asyncio.subprocess.Process, wanted: set[str]) -> list[str]:
            """Until all of these came."""
            assert reader.stdout is not None
            got: list[str] = []
            async with asyncio.timeout(90):
                while not wanted <= set(got):
                    got.append((await reader.stdout.readline()).decode().strip())
            return got

        sent = await publish(writer, "alert", range(50))
        reader = await start()
        first = await read(reader, set(sent))
        assert first == sent, "replay, the first time"
        await until(lambda: saved(tmp_path / "cursor", sent[-1]))
        reader.kill()
        await reader.wait()
        away = await publish(writer, "alert", range(50, 100))
        reader = await start()
        live = await publish(writer, "alert", range(100, 120))
        second = await read(reader, set(away + live))
        reader.kill()
        await reader.wait()
        assert second == away + live, "nothing again, nothing missing, in order"
