"""Replicas move between real stores: the past comes along, each message once."""

from __future__ import annotations

import asyncio

from tests.system.conftest import until
from tests.system.control import coordinator

import nearcast
from nearcast.domain.topic import TopicSpec


async def test_a_replica_moves_with_its_past_while_messages_flow(city):
    async with city(TopicSpec("log", (), ("osaka",), 1), report_seconds=0.2) as c, coordinator(c) as control:
        async with nearcast.connect(c.url("cloud")) as client:
            for n in range(200):
                await client.publish("log", {"n": n})
            going = True
            sent = 200

            async def publish():
                nonlocal sent
                while going:
                    await client.publish("log", {"n": sent}, quorum=0)
                    sent += 1
                    await asyncio.sleep(0.005)

            task = asyncio.create_task(publish())
            planning = control.coordinator.planning
            assert await planning._move_replicas("log", ("tokyo",)) == "done"

            async def copied():
                store = c.sites["tokyo"].agent._store_connection
                if store is None or "log" not in {
                    t.name for t in c.sites["tokyo"].agent._deployment.stored_at("tokyo")
                }:
                    return False
                try:
                    info = await store.jsm().stream_info("log")
                except Exception:
                    return False
                return not info.config.sources and info.state.messages >= 200

            await until(copied)
            await asyncio.sleep(0.3)
            going = False
            await task
            await asyncio.sleep(0.3)

            async def everything():
                query = client.history("log")
                numbers = [message.data["n"] async for message in query]
                return query.store == "tokyo" and sorted(numbers) == list(range(sent))

            await until(everything, 10)
