"""Replicas move between real stores: the past comes along, each message once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.system.control import coordinator

import nearcast
from nearcast.coordinator.executor.steps import Finish
from nearcast.coordinator.moves import ReplicaMove
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.nats.replica_stream import holds_topic
from nearcast.site.agent import repair_machine
from nearcast.testing import until


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
            assert await moved(control, "tokyo") == Finish("done")
            assert control.leader.registry.topics["log"].spec.replicas == ("tokyo",)
            await until(lambda: c.sites["osaka"].agent.topic_host.revision == control.leader.registry.revision)
            await asyncio.sleep(0.3)
            going = False
            await task
            await asyncio.sleep(0.3)

            await until(lambda: numbers_are(client, "tokyo", sent))


async def test_an_operator_empties_a_store_before_its_site_is_removed(city):
    """Of a topic with one replica, all would be gone with the site; no command moved it."""
    async with city(TopicSpec("log", (), ("osaka",), 1), report_seconds=0.2) as c, coordinator(c) as control:
        async with nearcast.connect(c.url("cloud")) as client:
            for n in range(100):
                await client.publish("log", {"n": n})

            async def ask(*to: str) -> dict[str, Any]:
                body = {"name": "log", "to": to}
                return await call_coordinator(client.connection, "topic", "replicas", body, dict, timeout=30)

            assert (await ask("tokyo"))["outcome"] in ("done", "copying")
            await until(lambda: control.leader.registry.topics["log"].spec.replicas == ("tokyo",))
            assert (await ask("tokyo"))["reason"] == "it is kept there already"
            await until(lambda: numbers_are(client, "tokyo", 100))
            assert (await ask("tokyo", "cloud"))["outcome"] in ("done", "copying")
            await until(lambda: control.leader.registry.topics["log"].spec.replicas == ("tokyo", "cloud"))
            await until(lambda: not control.leader.executor.copies)
            for to, complaint in (
                (("tokyo",), "to is tokyo; allowed: 2 stores or more, as many as keep it now"),
                (("tokyo", "tokyo"), "to is tokyo, tokyo; allowed: each site once"),
                (("tokyo", "paris"), "site 'paris' is not registered; there are: cloud, osaka, tokyo"),
            ):
                with pytest.raises(InputError, match=f"^{complaint}$"):
                    await ask(*to)


async def test_a_replica_that_comes_back_has_what_it_missed(city):
    async with city(TopicSpec("log", (), ("osaka",), 1), report_seconds=0.2) as c, coordinator(c) as control:
        async with nearcast.connect(c.url("cloud")) as client:
            for n, store in enumerate(("tokyo", "osaka")):
                for k in range(50):
                    await client.publish("log", {"n": 50 * n + k})
                assert await moved(control, store) == Finish("done")
                await until(
                    lambda: all(
                        s.agent.topic_host.revision == control.leader.registry.revision for s in c.sites.values()
                    )
                )
                await c.interest_settled()

            await until(lambda: numbers_are(client, "osaka", 100))


async def test_a_store_that_does_not_answer_is_given_up(city):
    spec = TopicSpec("log", (), ("osaka",), 1)
    async with city(spec, report_seconds=0.2) as c, coordinator(c, copy_limit=1.0) as control:
        await c.sites["tokyo"].store.stop()
        finish = await moved(control, "tokyo")
        assert finish == Finish("rolled back", "the store of tokyo did not copy the topic within 1 s")
        assert kept_by(control) == ("osaka",)
        assert not control.leader.registry.moves


async def test_the_past_comes_from_a_store_that_answers(city):
    spec = TopicSpec("log", (), ("osaka", "cloud"), 2)
    async with city(spec, report_seconds=0.2) as c, coordinator(c) as control:
        async with nearcast.connect(c.url("cloud")) as client:
            for n in range(50):
                await client.publish("log", {"n": n})
            await until(lambda: holds_topic(control.connection, "cloud", "log"))  # the two have compared
            await c.sites["osaka"].store.stop()  # the first that is named
            assert await moved(control, "tokyo", "cloud") == Finish("done")
            await c.sites["cloud"].store.stop()
            await until(lambda: numbers_are(client, "tokyo", 50))


async def test_a_move_waits_for_an_old_store_that_may_have_what_no_other_has(city, monkeypatch):
    """With quorum 1 a store that stopped before the first comparison was given up, with what it alone had."""
    monkeypatch.setattr(repair_machine, "_ABSENT", 1.0)
    spec = TopicSpec("log", (), ("osaka", "tokyo"), 1)
    async with city(spec, report_seconds=0.2) as c, coordinator(c, lease=20.0) as control:
        osaka, tokyo = c.sites["osaka"].store, c.sites["tokyo"].store  # the coordinator's state is in the cloud
        async with nearcast.connect(c.url("cloud"), timeout=60) as client:
            await client.publish("log", {"n": 0}, timeout=60)
            await until(lambda: holds_topic(control.connection, "tokyo", "log"), limit=60)
            await until(lambda: holds_topic(control.connection, "osaka", "log"), limit=60)
            await tokyo.stop()
            receipt = await client.publish("log", {"n": 1}, timeout=60)
            assert receipt.stores == ("osaka",)
            await osaka.stop()
            await tokyo.start()
            moving = move(control, "cloud", "tokyo")
            repair = c.sites["cloud"].agent.client_services.store.repair
            # Only the store that is away is left to be compared with, for longer than others are waited for.
            await until(lambda: "log" in repair._machines and repair._machines["log"]._peers["tokyo"].in_sync, limit=60)
            osaka_there, clock = repair._machines["log"]._peers["osaka"], asyncio.get_running_loop().time
            await until(lambda: repair_machine._absent(osaka_there, clock()), limit=60)
            await asyncio.sleep(2)  # the old code was done by now
            assert not moving.done()
            await osaka.start()
            assert await moving == Finish("done")
            assert kept_by(control) == ("cloud", "tokyo")
            await osaka.stop()
            await tokyo.stop()
            await until(lambda: numbers_are(client, "cloud", 2), limit=60)


async def test_a_coordinator_that_dies_while_replicas_move_leaves_the_rest_to_the_next(city):
    async with city(TopicSpec("log", (), ("osaka",), 1), report_seconds=0.2) as c:
        tokyo = c.sites["tokyo"]
        async with nearcast.connect(c.url("cloud")) as client:
            await client.publish("log", {"n": 0})
            async with coordinator(c) as control:
                await tokyo.store.stop()
                moving = move(control, "tokyo")
                await until(lambda: kept_by(control) == ("osaka", "tokyo"))
            assert moving.cancelled()
            await tokyo.store.start()
            async with coordinator(c) as control:
                await until(lambda: kept_by(control) == ("tokyo",) and not control.leader.registry.moves)
            await until(lambda: numbers_are(client, "tokyo", 1))


async def test_when_the_only_store_is_lost_another_keeps_what_is_new_and_gets_the_past_when_it_is_back(city):
    """Meanwhile the loop goes on: the site that is lost next has its topic run elsewhere."""
    specs = [TopicSpec("log", (), ("osaka",), 1), TopicSpec("gps", ("osaka",))]
    async with city(*specs, report_seconds=0.2) as c:
        async with coordinator(c, automatic=True, copy_limit=1.0, site_lost_after=2.0) as control:
            osaka = c.sites["osaka"]
            async with nearcast.connect(c.url("cloud")) as client:
                for n in range(50):
                    await client.publish("log", {"n": n})
                await osaka.store.stop()
                await until(lambda: len(kept_by(control)) == 2)
                for n in range(50, 100):
                    await client.publish("log", {"n": n}, timeout=20)
                await osaka.stop()

                async def elsewhere():
                    return (await control.members("gps"))[0].partition("/")[0] != "osaka"

                await until(elsewhere)

                async def only_the_copy():
                    return (await control.ask("coordinator", "status"))["moves_under_way"] == 1

                await until(only_the_copy)
                assert list(control.leader.executor.copies) == ["log"]  # it waits for the past, whatever the limit
                await osaka.start()
                await until(lambda: len(kept_by(control)) == 1 and kept_by(control) != ("osaka",))
                await until(lambda: numbers_are(client, kept_by(control)[0], 100))


async def test_a_store_that_was_away_for_long_is_a_replica_again(city):
    """Two of three stores are enough for a quorum, whichever is away next."""
    spec = TopicSpec("log", (), ("tokyo", "osaka", "cloud"), 2)
    async with city(spec, report_seconds=0.2) as c, coordinator(c, automatic=True, site_lost_after=2.0) as control:
        osaka, lost = c.sites["osaka"], control.leader.monitor.lost
        await osaka.stop()
        await until(lambda: "osaka" in lost(asyncio.get_running_loop().time()))

        async def planned() -> bool:
            status = await control.ask("coordinator", "status")
            return any("osaka" in sentence for sentence in status["last_pass"]["anomalies"])

        await until(planned)
        await asyncio.sleep(3 * control.coordinator.settings.period)
        assert set(kept_by(control)) == set(spec.replicas), "the record says what is wanted, not what is left"
        await osaka.start()
        await until(lambda: "osaka" not in lost(asyncio.get_running_loop().time()))
        assert set(kept_by(control)) == set(spec.replicas)
        await c.sites["tokyo"].store.stop()
        async with nearcast.connect(c.url("cloud")) as client:
            receipt = await client.publish("log", {"n": 1}, timeout=30)
        assert set(receipt.stores) == {"osaka", "cloud"}
        assert set(kept_by(control)) == {"tokyo", "osaka", "cloud"}


async def test_a_topic_that_is_removed_is_stored_no_more_and_comes_back_with_its_past(city):
    spec = TopicSpec("log", (), ("osaka",), 1)
    async with city(spec, report_seconds=0.2) as c, coordinator(c) as control:
        async with nearcast.connect(c.url("cloud")) as client:
            await client.publish("log", {"n": 0})
            await control.ask("topic", "rm", name="log")
            await until(lambda: not c.sites["osaka"].agent.client_services.directory.topics)
            await c.interest_settled()
            await client.publish("log", {"n": -1}, quorum=0)
            await control.ask("topic", "add", spec={"name": "log", "replicas": ["osaka"], "quorum": 1})
            await until(lambda: numbers_are(client, "osaka", 1))


def move(control, *stores):
    return control.leader.executor.copy(
        ReplicaMove(control.coordinator.term.next_move_id(), "log", kept_by(control), stores)
    )


async def moved(control, *stores):
    return await move(control, *stores)


def kept_by(control):
    return control.leader.registry.topics["log"].spec.replicas


async def numbers_are(client, store, count):
    """Whether this store answers, with each number once."""
    query = client.history("log")
    try:
        numbers = [message.data["n"] async for message in query]
    except nearcast.NearcastError:
        return False
    return query.store == store and sorted(numbers) == list(range(count))
