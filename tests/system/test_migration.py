"""Topics move between real sites while messages flow: each is processed exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import NoneType

import pytest
from tests.system.worker_counts import stats_of_workers

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.rpc import RemoteError, StaleTermError, call
from nearcast.protocol.control import StartTopic, StopTopic
from nearcast.testing import RunningSites, until


async def command(connection, site, verb, body):
    await call(connection, subjects.site_command(site, verb), body, NoneType, timeout=30)


async def handovers_are_over(c: RunningSites) -> bool:
    """Whether no worker forwards or holds anything any more."""
    workers = [stats for site in c.sites.values() for stats in await stats_of_workers(site)]
    return not any(stats.leaving or stats.held for stats in workers)


async def test_twenty_migrations_under_load_lose_and_repeat_nothing(city):
    spec = TopicSpec("gps", ("tokyo",))
    async with city(spec) as c:
        connection = await open_connection([c.url("cloud")], name="test")
        got: list[str] = []
        async with (
            nearcast.connect(c.url("tokyo"), name="near") as near,
            nearcast.connect(c.url("osaka"), name="far") as far,
            nearcast.connect(c.url("cloud"), name="reader") as reader,
        ):
            await reader.subscribe("gps", callback=lambda message: got.append(message.id))
            await c.interest_settled()
            published: list[str] = []
            running = True

            async def publish(client):
                while running:
                    for _ in range(20):
                        published.append((await client.publish("gps", {"n": len(published)})).id)
                    await asyncio.sleep(0.02)

            tasks = [asyncio.create_task(publish(client)) for client in (near, far)]
            ring, epoch = ["tokyo", "osaka", "cloud"], 1
            for n in range(20):
                here, there = ring[n % 3], ring[(n + 1) % 3]
                source = WorkerId(here, "worker-0")
                await command(connection, there, "start", StartTopic(1, epoch + 1, spec, "worker-0", source))
                await asyncio.sleep(0.05)
                towards = WorkerId(there, "worker-0")
                await command(connection, here, "stop", StopTopic(1, epoch + 1, "gps", "worker-0", towards))
                epoch += 1
            running = False
            await asyncio.gather(*tasks)
            await until(lambda: len(got) >= len(published))
            await until(lambda: handovers_are_over(c))
            await asyncio.sleep(0.5)  # whatever was notified twice has come
            counts = Counter(identity.rpartition(";")[0] for identity in got)
            lost = [identity for identity in published if identity not in counts]
            repeated = [identity for identity, count in counts.items() if count > 1]
            assert (lost, repeated) == ([], [])
            assert len(published) > 2000
        await connection.close()


async def test_a_topic_takes_its_spool_along(city):
    spec = TopicSpec("gps.*", ("tokyo",))
    async with city(spec) as c:
        connection = await open_connection([c.url("cloud")], name="test")
        async with nearcast.connect(c.url("tokyo")) as client:
            subscription = await client.subscribe("gps.*")
            for n in range(30):
                await client.publish("gps.a", {"n": n})
            for _ in range(30):
                await anext(subscription)
            await command(
                connection, "cloud", "start", StartTopic(1, 2, spec, "worker-3", WorkerId("tokyo", "worker-0"))
            )
            await command(
                connection, "tokyo", "stop", StopTopic(1, 2, "gps.*", "worker-0", WorkerId("cloud", "worker-3"))
            )
            await client.publish("gps.a", {"n": 30, "do": "past"})
            message = await anext(subscription)
            assert message.data == {"n": 30, "past": list(range(10, 30))}
            assert list(c.sites["cloud"].workers) == ["worker-3"]
        await connection.close()


async def test_a_deposed_coordinators_commands_and_older_epochs_are_refused(city):
    spec = TopicSpec("gps", ("tokyo",))
    async with city(spec) as c:
        connection = await open_connection([c.url("cloud")], name="test")
        await command(connection, "osaka", "stop", StopTopic(5, 1, "gps", "worker-0"))
        start = StartTopic(4, 2, spec, "worker-0", WorkerId("tokyo", "worker-0"))
        with pytest.raises(StaleTermError, match="term 4 is over; term 5 leads") as caught:
            await command(connection, "osaka", "start", start)
        assert caught.value.term == 5
        assert not c.sites["osaka"].workers
        with pytest.raises(RemoteError, match=r"topic gps is held with epoch 1, newer than 0$"):
            await command(connection, "tokyo", "stop", StopTopic(1, 0, "gps", "worker-0"))
        start = StartTopic(5, 2, spec, "worker-0", WorkerId("cloud", "worker-9"))
        with pytest.raises(RemoteError, match="cloud/worker-9 sends no spool of topic gps"):
            await command(connection, "osaka", "start", start)
        await connection.close()


async def test_messages_without_ids_are_processed_once_too(city):
    spec = TopicSpec("gps", ("tokyo",))
    async with city(spec) as c:
        for site in c.sites.values():
            site.agent.topic_host.settle = lambda: (
                2.0
            )  # told apart by time: half of this must be long even on a busy machine
        connection = await open_connection([c.url("cloud")], name="test")
        devices = [await open_connection([c.url(site)], name=site) for site in ("tokyo", "osaka", "cloud")]
        got: list[int] = []
        async with nearcast.connect(c.url("cloud"), name="reader") as reader:
            await reader.subscribe("gps", callback=lambda message: got.append(message.data["n"]))
            await c.interest_settled()
            sent, running = 0, True

            async def publish(device):
                nonlocal sent
                while running:
                    for _ in range(5):
                        device.send(subjects.publications("gps"), b"", b'{"n":%d}' % sent)
                        sent += 1
                    await asyncio.sleep(0.01)

            tasks = [asyncio.create_task(publish(device)) for device in devices]
            ring = ["tokyo", "osaka", "cloud"]
            for n in range(8):
                here, there, epoch = ring[n % 3], ring[(n + 1) % 3], n + 2
                start = StartTopic(1, epoch, spec, "worker-0", WorkerId(here, "worker-0"))
                await command(connection, there, "start", start)
                stop = StopTopic(1, epoch, "gps", "worker-0", WorkerId(there, "worker-0"))
                await command(connection, here, "stop", stop)
            running = False
            await asyncio.gather(*tasks)
            await until(lambda: len(got) >= sent)
            await until(lambda: handovers_are_over(c))
            await asyncio.sleep(0.5)  # whatever was notified twice has come
            counts = Counter(got)
            assert {n: counts[n] for n in range(sent) if counts[n] != 1} == {}
            assert sent > 500
        for device in (*devices, connection):
            await device.close()
