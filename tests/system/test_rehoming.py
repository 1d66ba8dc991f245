"""Clients move between real sites while messages flow: no gap, no duplicate."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest
from tests.system.control import coordinator

import nearcast
from nearcast.coordinates import Coordinate
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until


def at(x: float) -> Coordinate:
    return Coordinate((x, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), 1.0)


async def test_ten_moves_of_publisher_and_subscriber_lose_and_repeat_nothing(city):
    topics = (TopicSpec("gps", ("tokyo",)), TopicSpec("log", (), ("osaka", "cloud"), 1))
    async with city(*topics, report_seconds=0.3) as c, coordinator(c) as control:
        options = {"coordinator": c.url("cloud"), "report_seconds": 0.3}
        async with (
            nearcast.connect(name="writer", **options) as writer,
            nearcast.connect(name="reader", **options) as reader,
        ):
            got: dict[str, list[str]] = {"gps": [], "plain": [], "log": []}
            for topic, ids in got.items():
                await reader.subscribe(topic, callback=lambda message, ids=ids: ids.append(message.id))
            await c.interest_settled()
            sent: dict[str, list[str]] = {"gps": [], "plain": [], "log": []}
            running = True

            async def publish() -> None:
                receipts = []
                while running:
                    for topic in ("gps", "plain"):
                        for _ in range(4):
                            sent[topic].append((await writer.publish(topic, {"n": len(sent[topic])})).id)
                    receipts.append(await writer.publish_nowait("log", {"n": 1}, timeout=20))
                    await asyncio.sleep(0.01)
                sent["log"] = [(await receipt).id for receipt in receipts]

            task = asyncio.create_task(publish())
            ring = ["tokyo", "osaka", "cloud"]
            for n in range(10):
                for client, shift in ((writer, 1), (reader, 2)):
                    target = ring[(n + shift) % 3]
                    if client.home != target:
                        answer = await control.ask("client", "move", name=client.name, to=[target])
                        assert answer["error"] == ""
                        assert client.home == target
                await asyncio.sleep(0.1)
                await until(lambda: not writer.coordination.rehoming.moving and not reader.coordination.rehoming.moving)
            running = False
            await task
            for topic, ids in got.items():
                await until(lambda topic=topic, ids=ids: len(ids) >= len(sent[topic]))
            await asyncio.sleep(0.5)
            for topic, ids in got.items():
                counts = Counter(identity.partition(";")[0] for identity in ids)
                assert [identity for identity in sent[topic] if identity not in counts] == [], topic
                assert [identity for identity, count in counts.items() if count > 1] == [], topic
            assert writer.coordination.rehoming.moves >= 6
            assert len(sent["plain"]) > 500


async def test_a_client_is_given_the_nearest_home_and_the_next_one_when_that_is_gone(city):
    async with city(report_seconds=0.2) as c, coordinator(c) as control:
        for n, site in enumerate(("tokyo", "osaka", "cloud")):
            c.sites[site].agent.coordinates.fixed = at(100.0 * n)
        reports = control.leader.monitor.reports
        await until(lambda: reports["osaka"].coordinate == at(100.0))
        await until(lambda: reports["cloud"].coordinate == at(200.0))
        options = {"coordinator": c.url("cloud"), "report_seconds": 0.2}
        async with nearcast.connect(name="car", coordinate=at(90.0), **options) as car:
            assert car.home == "osaka"
            assert (await control.ask("client", "info", name="car"))["home"] == "osaka"
            await c.sites["osaka"].stop()
            await until(lambda: car.home != "osaka")

            async def noted() -> bool:
                return bool((await control.ask("client", "info", name="car"))["home"] == car.home)

            await until(noted)
            assert car.home == "tokyo"  # at 0, the next nearest: the cloud is at 200

            async def said() -> bool:
                return bool((await control.ask("client", "info", name="car"))["tried"] == ["osaka"])

            await until(said)
        await until(lambda: "car" not in control.leader.registry.clients)


async def test_a_client_that_cannot_reach_its_home_takes_the_next_and_says_so(city):
    async with city(report_seconds=0.2) as c, coordinator(c, site_lost_after=60.0) as control:
        for n, site in enumerate(("tokyo", "osaka", "cloud")):
            c.sites[site].agent.coordinates.fixed = at(100.0 * n)
        reports = control.leader.monitor.reports
        await until(lambda: all(reports[site].coordinate == at(100.0 * n) for n, site in enumerate(c.sites)))
        await c.sites["osaka"].stop()  # nobody has missed it yet
        options = {"coordinator": c.url("cloud"), "report_seconds": 0.2}
        async with nearcast.connect(name="car", coordinate=at(90.0), **options) as car:
            assert car.home == "tokyo"

            async def said() -> bool:
                found = await control.ask("client", "info", name="car")
                return bool(found["home"] == "tokyo" and found["tried"] == ["osaka"])

            await until(said)


async def test_homes_of_a_reloc_plan(city):
    topic = TopicSpec("chat", ("tokyo", "osaka"))
    async with city(topic, report_seconds=0.2) as c, coordinator(c, homes="reloc", cool_down=0.3) as control:
        for n, site in enumerate(("tokyo", "osaka", "cloud")):
            c.sites[site].agent.coordinates.fixed = at(100.0 * n)
        reports = control.leader.monitor.reports
        await until(lambda: all(reports[site].coordinate == at(100.0 * n) for n, site in enumerate(c.sites)))
        options = {"coordinator": c.url("cloud"), "report_seconds": 0.2}
        async with contextlib.AsyncExitStack() as stack:
            for n in range(4):
                friend = await stack.enter_async_context(
                    nearcast.connect(name=f"friend{n}", coordinate=at(100.0), **options)
                )
                await friend.subscribe("chat", callback=lambda message: None)
                await friend.publish("chat", {"n": n})
            async with nearcast.connect(name="ann", coordinate=at(45.0), **options) as ann:
                assert ann.home == "tokyo"  # in no plan yet: the nearest
                await ann.subscribe("chat", callback=lambda message: None)
                await ann.publish("chat", {"n": 9})
                await until(lambda: control.leader.homes.plan.get("ann") == "osaka")
            async with nearcast.connect(name="ann", coordinate=at(45.0), **options) as ann:
                assert ann.home == "osaka"  # where her friends are


async def test_a_subscription_that_begins_while_the_client_moves_moves_too(city):
    async with city(report_seconds=0.3) as c, coordinator(c) as control:
        async with (
            nearcast.connect(coordinator=c.url("tokyo"), name="car") as car,
            nearcast.connect(c.url("cloud"), name="writer") as writer,
        ):
            got: dict[str, list[int]] = {"before": [], "closed": [], "meanwhile": []}

            def subscribe(topic: str) -> nearcast.Subscription:
                return car.subscribe(topic, callback=lambda message: got[topic].append(message.data))

            await subscribe("before")
            await (await subscribe("closed")).close()
            old, flush = car.connection, car.connection.flush

            async def subscribe_and_flush(timeout=10):
                old.flush = flush
                await subscribe("meanwhile")  # the old connection, flushed before the switch, is still the client's own
                assert car.connection is old
                await flush(timeout)

            old.flush = subscribe_and_flush
            target = next(site for site in c.sites if site not in (car.home, "cloud"))
            assert (await control.ask("client", "move", name="car", to=[target]))["error"] == ""
            await until(lambda: not car.coordination.rehoming.moving)
            await c.interest_settled()
            for topic in got:
                await writer.publish(topic, 1)
            await until(lambda: got["before"] == got["meanwhile"] == [1])
            assert got["closed"] == []


async def test_a_home_that_does_not_answer_leaves_the_client_where_it_is(city):
    async with city(report_seconds=0.3) as c, coordinator(c) as control:
        async with nearcast.connect(coordinator=c.url("tokyo"), name="car", timeout=5) as car:
            before = car.home
            other = next(site for site in c.sites if site not in (before, "cloud"))
            await c.sites[other].broker.stop()
            answer = await control.ask("client", "move", name="car", to=[other])
            assert other in answer["error"]
            assert car.home == before
            with pytest.raises(nearcast.InputError, match="client 'bus' is not registered"):
                await control.ask("client", "move", name="bus", to=["tokyo"])


async def test_a_client_that_leaves_in_the_middle_of_a_move_leaves_nothing_open(city, monkeypatch):
    monkeypatch.setattr("nearcast.client.coordination.rehoming_executor.interest_settle", lambda *_: 3600.0)
    async with city(TopicSpec("log", (), ("cloud",), 1), report_seconds=0.3) as c, coordinator(c) as control:
        others = asyncio.all_tasks()
        async with nearcast.connect(coordinator=c.url("tokyo"), name="car") as car:
            await car.subscribe("log", callback=lambda message: None)
            await car.publish("log", {"n": 1})
            target = next(site for site in c.sites if site != car.home)
            assert (await control.ask("client", "move", name="car", to=[target]))["error"] == ""
            assert car.coordination.rehoming.moving  # it still takes messages on both connections
        await asyncio.sleep(0)
        left = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - others}
        assert {name for name in left if name.startswith(("Client.", "Acknowledgements."))} == set()


async def test_a_client_that_comes_while_no_coordinator_answers_works_and_is_given_a_home_later(city):
    async with city(TopicSpec("news"), report_seconds=0.2) as c:
        for site, x in {"tokyo": 0.0, "osaka": 100.0, "cloud": 300.0}.items():
            c.sites[site].agent.coordinates.fixed = at(x)
        options = {"coordinator": c.url("cloud"), "coordinate": at(99.0), "report_seconds": 0.2}
        async with coordinator(c):
            pass  # the registry knows the sites; the next leader does not know yet where they are
        async with nearcast.connect(name="early", **options) as early:
            assert early.home == "cloud"
            subscription = await early.subscribe("news")
            await early.publish("news", {"n": 1})
            assert (await anext(subscription)).data["n"] == 1
            async with coordinator(c) as control:

                async def at_home():
                    known = {row["client"]: row["home"] for row in await control.ask("client", "ls")}
                    return early.home == "osaka" and known == {"early": "osaka"}

                await until(at_home)
                await early.publish("news", {"n": 2})
                assert (await anext(subscription)).data["n"] == 2


async def test_a_client_that_comes_just_before_a_coordinator_is_known_is_given_a_home_at_once(city, monkeypatch):
    """Brokers of other sites hear of a new leader a little later; clients stayed homeless until their next report."""
    monkeypatch.setattr("nearcast.nats.coordinator_rpc._UNTIL_KNOWN", 60.0)  # a coordinator starts in it
    async with city(report_seconds=0.2) as c:
        async with coordinator(c):
            pass  # the registry knows the sites

        async def come() -> bool:
            async with nearcast.connect(coordinator=c.url("tokyo"), name="car") as car:
                return car.coordination.registered is not None

        coming = asyncio.create_task(come())
        await asyncio.sleep(0.5)  # it has asked, and nobody listened
        async with coordinator(c, wait=False):
            assert await coming


async def test_a_client_that_was_forgotten_while_it_was_away_registers_again(city):
    async with city(TopicSpec("news"), names=("cloud",), report_seconds=0.2) as c, coordinator(c) as control:
        async with nearcast.connect(coordinator=c.url("cloud"), name="late", report_seconds=0.2) as late:
            await until(lambda: "late" in control.leader.registry.clients)
            await until(
                lambda: late.coordination.registered is not None and late.coordination.registered.home == late.home
            )
            await control.ask("client", "leave.late", name="late")  # as when it is silent for too long
            assert "late" not in control.leader.registry.clients
            await late.connection.force_reconnect()
            await until(lambda: "late" in control.leader.registry.clients)


async def test_history_goes_on_when_the_client_moves_while_it_is_read(city):
    async with city(TopicSpec("log", (), ("cloud",), 1), report_seconds=0.3) as c, coordinator(c) as control:
        async with nearcast.connect(coordinator=c.url("tokyo"), name="car") as car:
            number = 400  # of 4 KiB: several pages, of which one is read ahead
            receipts = [await car.publish_nowait("log", b"x" * 4096, timeout=30) for _ in range(number)]
            sent = [(await receipt).id for receipt in receipts]
            read = []
            async for message in car.history("log"):
                if not read:
                    target = next(site for site in c.sites if site not in (car.home, "cloud"))
                    assert (await control.ask("client", "move", name="car", to=[target]))["error"] == ""
                    await until(lambda: not car.coordination.rehoming.moving)
                read.append(message.id)
            assert read == sent
