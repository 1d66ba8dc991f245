"""The whole loop with real servers: something goes wrong, and the coordinator puts it right."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from tests.suspend import suspend
from tests.system.control import coordinator
from tests.system.test_rehoming import at

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import until


async def place(c, control, **where):
    for site, x in where.items():
        c.sites[site].agent.coordinates.fixed = at(x)
    reports = control.leader.monitor.reports
    await until(lambda: all(reports[site].coordinate == at(x) for site, x in where.items()))


def options(c):
    return {"coordinator": c.url("cloud"), "report_seconds": 0.2}


@contextlib.asynccontextmanager
async def traffic(client, topic, per_second=100):
    """A client publishes until the end."""
    sent: list[str] = []

    async def publish():
        while True:
            sent.append((await client.publish(topic, {"n": len(sent)})).id)
            await asyncio.sleep(1 / per_second)

    task = asyncio.create_task(publish())
    try:
        yield sent
    finally:
        await cancel_and_wait(task)


async def test_a_latency_violation_moves_the_topic_and_the_clients_follow(city):
    spec = TopicSpec("gps", ("tokyo",), bound_ms=40)
    async with city(spec, report_seconds=0.2) as c, coordinator(c) as control:
        await place(c, control, tokyo=0.0, osaka=100.0, cloud=300.0)
        async with (
            nearcast.connect(name="leader", coordinate=at(99.0), **options(c)) as leader,
            nearcast.connect(name="drone", coordinate=at(101.0), **options(c)) as drone,
        ):
            assert (await control.ask("client", "move", name="drone", to=["tokyo"]))["error"] == ""
            await until(lambda: not drone.coordination.rehoming.moving)
            got: list[str] = []
            await drone.subscribe("gps", callback=lambda message: got.append(message.id))
            async with traffic(leader, "gps") as sent:

                async def seen():
                    plan = await control.ask("plan", "show")
                    return any("topic gps: tokyo/worker-0 -> osaka/worker-0" in move["move"] for move in plan["moves"])

                await until(seen)
                assert await control.members("gps") == ["tokyo/worker-0"]  # shown, not done

                async def settled():
                    await control.ask("plan", "apply")
                    return await control.members("gps") == ["osaka/worker-0"] and drone.home == leader.home == "osaka"

                await until(settled)
            await until(lambda: len(got) >= len(sent))
            assert [identity.partition(";")[0] for identity in got] == list(dict.fromkeys(sent))
        assert (await control.ask("plan", "show"))["moves"] == []


async def test_an_overloaded_site_sheds_its_largest_topics(city):
    specs = [TopicSpec("big", ("tokyo",)), TopicSpec("small", ("tokyo",))]
    async with city(*specs, report_seconds=0.2) as c, coordinator(c, automatic=True) as control:
        async with nearcast.connect(name="sender", **options(c)) as sender:
            async with traffic(sender, "big", 200), traffic(sender, "small", 20):
                reports = control.leader.monitor.reports
                await until(lambda: reports["tokyo"].broker.messages_out > 10 or sender.home != "tokyo")
                c.sites["tokyo"].agent.measurement.utilisation = {"cpu": 0.95}

                async def shed():
                    return (await control.members("big"))[0].partition("/")[0] != "tokyo"

                await until(shed)
                c.sites["tokyo"].agent.measurement.utilisation = {}
                assert await control.members("small") == ["tokyo/worker-0"]


async def test_skewed_homes_are_balanced(city):
    async with city(TopicSpec("news"), report_seconds=0.2) as c:
        async with coordinator(c, cov=0.2, mean_load=20.0, client_moves=50) as control:
            async with contextlib.AsyncExitStack() as stack:
                readers = [
                    await stack.enter_async_context(nearcast.connect(name=f"r{n}", **options(c))) for n in range(12)
                ]
                for reader in readers:
                    if reader.home != "tokyo":
                        await control.ask("client", "move", name=reader.name, to=["tokyo"])
                    await reader.subscribe("news", callback=lambda message: None)
                editor = await stack.enter_async_context(nearcast.connect(name="editor", **options(c)))
                async with traffic(editor, "news", 100):

                    async def skewed():
                        return (await control.ask("plan", "show"))["before"]["cov"] > 0.2

                    await until(skewed)

                    async def balanced():
                        await control.ask("plan", "apply")
                        return (await control.ask("plan", "show"))["before"]["cov"] <= 0.2

                    await until(balanced)
                assert len({reader.home for reader in readers}) == 3


async def test_a_worker_over_its_bound_is_split(city):
    specs = [TopicSpec(name, ("tokyo",), bound_ms=1000) for name in ("one", "two")]
    async with city(*specs, report_seconds=0.2) as c, coordinator(c, automatic=True, worker_busy=0.02) as control:
        async with nearcast.connect(name="sender", **options(c)) as sender:
            async with traffic(sender, "one", 200), traffic(sender, "two", 150):

                async def split():
                    return await control.members("one") != await control.members("two")

                await until(split)
        assert {await control_member(control, "one"), await control_member(control, "two")} == {
            "tokyo/worker-0",
            "tokyo/worker-1",
        }


async def control_member(control, topic):
    (found,) = await control.members(topic)
    return found


async def test_a_lost_sites_topics_run_elsewhere_and_its_return_does_no_harm(city):
    spec = TopicSpec("gps", ("tokyo",))
    async with city(spec, report_seconds=0.2) as c, coordinator(c, automatic=True, site_lost_after=2.0) as control:
        tokyo = c.sites["tokyo"]
        async with nearcast.connect(c.url("osaka"), name="reader") as reader:
            subscription = await reader.subscribe("gps")
            await c.interest_settled()
            await reader.publish("gps", {"n": 1})
            await anext(subscription)
            await until(lambda: tokyo.agent.topic_host.has_saved_assignments)
            await tokyo.stop()

            async def elsewhere():
                return (await control.members("gps"))[0].partition("/")[0] != "tokyo"

            await until(elsewhere)
            await c.interest_settled()
            await reader.publish("gps", {"n": 2})
            assert (await anext(subscription)).data["n"] == 2
            await tokyo.start()
            assert not tokyo.workers  # it asked before it started anything
            await until(lambda: "tokyo" in control.leader.control_loop.known_sites)
            await reader.publish("gps", {"n": 3})
            assert (await anext(subscription)).data["n"] == 3
            assert (await control.members("gps"))[0].partition("/")[0] != "tokyo"


async def test_a_worker_that_hangs_does_not_take_its_site_with_it(city):
    async with city(TopicSpec("gps", ("tokyo",)), report_seconds=0.2) as c:
        async with coordinator(c, automatic=True, site_lost_after=8.0) as control:
            worker = c.sites["tokyo"].workers["worker-0"].pid
            monitor, clock = control.leader.monitor, asyncio.get_running_loop().time
            suspend(worker)
            try:
                until_when = clock() + 8.0

                def heard_long_enough():
                    assert "tokyo" not in monitor.lost(clock())
                    return monitor.leases.last_heard["tokyo"] > until_when

                await until(heard_long_enough)
            finally:
                with contextlib.suppress(ProcessLookupError):  # it was replaced
                    os.kill(worker, signal.SIGCONT)
            assert await control.members("gps") == ["tokyo/worker-0"]
