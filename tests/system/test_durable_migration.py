"""A durable topic moves under load: nothing is lost, nothing is processed twice, each source's order is kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import NoneType

import pytest

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

@processor("gps", spool={spool})
def note(message, spool):
    os.write(log, f"{{message.id}}\\n".encode())
    return message.payload
"""


RING = [WorkerId(site, "worker-0") for site in ("tokyo", "osaka", "cloud")]
PAIR = [WorkerId("tokyo", "worker-0"), WorkerId("tokyo", "worker-1")]


# A broker gives publications to two workers of its site in turn; a spool of one message tells little of what is in
# hand.
@pytest.mark.parametrize(("members", "spool"), [(RING, 20), (PAIR, 1)], ids=["sites", "workers"])
async def test_moves_of_a_durable_topic_lose_repeat_and_reorder_nothing(
    tmp_path: Path, members: list[WorkerId], spool: int
) -> None:
    log = tmp_path / "processed"
    (tmp_path / "ordered_processors.py").write_text(PROCESSOR.format(log=str(log), spool=spool))
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
            for n in range(3 * len(members)):
                source, towards = members[n % len(members)], members[(n + 1) % len(members)]
                await command(towards.site, "start", StartTopic(1, n + 2, spec, towards.worker, source))
                await asyncio.sleep(0.05 if members is RING else 0.5)
                await command(source.site, "stop", StopTopic(1, n + 2, "gps", source.worker, towards))
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
