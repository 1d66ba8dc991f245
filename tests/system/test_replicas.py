"""Replicas move between real stores: the past comes along, each message once."""

from __future__ import annotations

import asyncio

from tests.system.conftest import interest_settled, until
from tests.system.control import coordinator

import nearcast
from nearcast.coordinator.executor.replica_move import move_replicas
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
            one = control.coordinator
            assert await move_replicas(one.registry, one.connection, "log", ("tokyo",), 30.0, one.term) == ""
            assert one.registry.topics["log"].spec.replicas == ("tokyo",)
            await until(lambda: c.sites["osaka"].hosting.revision == one.registry.revision)
            await asyncio.sleep(0.3)
            going = False
            await task
            await asyncio.sleep(0.3)

            async def everything():
                query = client.history("log")
                numbers = [message.data["n"] async for message in query]
                return query.store == "tokyo" and sorted(numbers) == list(range(sent))

            await until(everything)


async def test_a_replica_that_comes_back_has_what_it_missed(city):
    async with city(TopicSpec("log", (), ("osaka",), 1), report_seconds=0.2) as c, coordinator(c) as control:
        one = control.coordinator
        async with nearcast.connect(c.url("cloud")) as client:
            for n, store in enumerate(("tokyo", "osaka")):
                for k in range(50):
                    await client.publish("log", {"n": 50 * n + k})
                assert await move_replicas(one.registry, one.connection, "log", (store,), 30.0, one.term) == ""
                await until(lambda: all(s.hosting.revision == one.registry.revision for s in c.sites.values()))
                await interest_settled()

            async def everything():
                query = client.history("log")
                numbers = [message.data["n"] async for message in query]
                return query.store == "osaka" and sorted(numbers) == list(range(100))

            await until(everything)


async def test_a_store_that_does_not_answer_is_given_up(city):
    async with city(TopicSpec("log", (), ("osaka",), 1), report_seconds=0.2) as c, coordinator(c) as control:
        await c.sites["tokyo"].store.stop()
        one = control.coordinator
        why = await move_replicas(one.registry, one.connection, "log", ("tokyo",), 1.0, one.term)
        assert why == "the store of tokyo did not have its past within 1 s"
        assert one.registry.topics["log"].spec.replicas == ("osaka",)
