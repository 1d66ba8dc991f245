"""A durable topic moves under load: nothing is lost, nothing is processed twice, each source's order is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import NoneType

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.rpc import call
from nearcast.nats.stamp import source_and_number
from nearcast.protocol.control import StartTopic, StopTopic
from nearcast.testing import sites, until

PROCESSOR = """
import os
from nearcast import processor

log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@processor("gps", spool=20)
def note(message, spool):
    os.write(log, f"{{message.id}}\\n".encode())
    return message.payload
"""


async def test_moves_of_a_durable_topic_lose_repeat_and_reorder_nothing(tmp_path: Path) -> None:
    log = tmp_path / "processed"
    (tmp_path / "ordered_processors.py").write_text(PROCESSOR.format(log=str(log)))
    spec = TopicSpec("gps", ("tokyo",), ("tokyo", "osaka", "cloud"), quorum=2)
    acknowledged: list[str] = []

    def processed() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    async with sites(
        spec,
        names=("tokyo", "osaka", "cloud"),
        processors=["ordered_processors"],
        search_path=[str(tmp_path)],
        folder=tmp_path,
    ) as c:
        connection = await open_connection([c.url("cloud")], name="test")

        async def command(site: str, verb: str, body: StartTopic | StopTopic) -> None:
            await call(connection, subjects.site_command(site, verb), body, NoneType, timeout=60)

        async with (
            nearcast.connect(c.url("tokyo"), name="near") as near,
            nearcast.connect(c.url("osaka"), name="far") as far,
        ):
            running = True

            async def publish(client: nearcast.Client) -> None:
                while running:
                    receipts = [await client.publish_nowait("gps", {"n": n}, timeout=30) for n in range(10)]
                    acknowledged.extend([(await receipt).id for receipt in receipts])
                    await asyncio.sleep(0.01)

            tasks = [asyncio.create_task(publish(client)) for client in (near, far)]
            ring = ["tokyo", "osaka", "cloud"]
            for n in range(9):
                here, there, epoch = ring[n % 3], ring[(n + 1) % 3], n + 2
                source, towards = WorkerId(here, "worker-0"), WorkerId(there, "worker-0")
                await command(there, "start", StartTopic(1, epoch, spec, "worker-0", source))
                await asyncio.sleep(0.05)
                await command(here, "stop", StopTopic(1, epoch, "gps", "worker-0", towards))
                await asyncio.sleep(0.3)
            running = False
            await asyncio.gather(*tasks)
            await until(lambda: set(acknowledged) <= set(processed()), limit=60)
        await connection.close()
    found = processed()
    assert [one for one, count in Counter(found).items() if count > 1] == []
    last: dict[str, int] = {}
    for one in found:
        key = source_and_number(one.encode())
        assert key is not None
        assert key[1] == last.get(key[0], 0) + 1, f"{one} after {last.get(key[0])}"
        last[key[0]] = key[1]
    assert len(last) == 2
