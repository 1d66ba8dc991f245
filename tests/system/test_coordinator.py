"""Coordinators with real servers: registration, leadership, moves that survive their coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from types import NoneType

import msgspec
import pytest
from tests.system.control import coordinator

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.catalog import REPORTS_STREAM, Catalog
from nearcast.nats.connection import open_connection
from nearcast.nats.lease import LeaseKeeper
from nearcast.nats.rpc import StaleTermError, call
from nearcast.protocol.control import StopTopic
from nearcast.protocol.reports import SiteReport
from nearcast.testing import until

GPS = TopicSpec("gps", ("tokyo",))


async def test_sites_register_their_topics_and_a_topic_moves_on_request(city):
    async with city(GPS, TopicSpec("log", (), ("osaka",), 1), report_seconds=0.3) as c, coordinator(c) as control:
        rows = await control.ask("site", "ls")
        assert [(row["site"], row["state"]) for row in rows] == [("cloud", "up"), ("osaka", "up"), ("tokyo", "up")]
        assert [row["topic"] for row in await control.ask("topic", "ls")] == ["gps", "log"]
        async with nearcast.connect(c.url("cloud")) as client:
            subscription = await client.subscribe("gps")
            await c.interest_settled()
            await client.publish("gps", {"n": 1})
            await anext(subscription)
            moved = await control.ask("topic", "move", name="gps", to=["osaka"])
            assert moved["outcome"] == "done"
            assert await control.members("gps") == ["osaka/worker-0"]
            await client.publish("gps", {"n": 2, "do": "past"})
            assert (await anext(subscription)).data == {"n": 2, "past": [1]}
        assert not control.leader.registry.moves
        with pytest.raises(nearcast.InputError, match="site 'nara' is not registered; there are: "):
            await control.ask("topic", "move", name="gps", to=["nara"])
        with pytest.raises(nearcast.InputError, match="topic 'log' has no processor"):
            await control.ask("topic", "move", name="log", to=["tokyo"])
        with pytest.raises(nearcast.InputError, match="of length >= 1"):
            await control.ask("topic", "move", name="gps", to=[])
        with pytest.raises(nearcast.InputError, match="to is tokyo, tokyo; allowed: each site once"):
            await control.ask("topic", "move", name="gps", to=["tokyo", "tokyo"])


async def test_topics_are_added_and_removed_while_all_runs(city):
    async with city(GPS, report_seconds=0.2) as c, coordinator(c) as control:
        with pytest.raises(nearcast.InputError, match="'gps' is registered already"):
            await control.ask("topic", "add", spec={"name": "gps", "managed_by": ["osaka"]})
        for key in ("managed_by", "replicas"):  # no publication would ever have had a quorum of two
            with pytest.raises(nearcast.InputError, match=f"{key} is tokyo, tokyo; allowed: each site once"):
                await control.ask("topic", "add", spec={"name": "log", key: ["tokyo", "tokyo"]})
        await control.ask("topic", "add", spec={"name": "air.*", "managed_by": ["osaka"]})
        await until(lambda: "air.*" in c.sites["osaka"].agent.topic_host.running)
        async with nearcast.connect(c.url("tokyo")) as client:
            subscription = await client.subscribe("air.*")
            await c.interest_settled()
            await client.publish("air.no2", {"n": 1})
            assert (await anext(subscription)).data["n"] == 1
        await control.ask("topic", "rm", name="air.*")
        await until(lambda: "air.*" not in c.sites["osaka"].agent.topic_host.running)
        assert [row["topic"] for row in await control.ask("topic", "ls")] == ["gps"]


async def test_a_second_coordinator_takes_over_and_two_never_act(city):
    async with city(GPS, report_seconds=0.2) as c:
        async with coordinator(c, lease=3.0) as first, coordinator(c, wait=False, lease=3.0) as second:
            one, two = first.coordinator, second.coordinator
            clock = asyncio.get_running_loop().time
            assert not two.lease.leads(clock())
            assert one.term.number() == 1
            # The first hangs: its lease runs out while it believes to lead. It must not act.
            one.lease.wish = lambda now: None
            both = 0
            while not two.leading.is_set():
                both += one.lease.leads(clock()) and two.lease.leads(clock())
                await asyncio.sleep(0.005)
            assert both == 0
            assert two.term.number() == 2
            with pytest.raises(nearcast.NearcastError, match="does not lead any more"):
                one.term.number()
            await until(lambda: set(c.sites) <= set(second.leader.monitor.reports))
            assert (await second.ask("topic", "move", name="gps", to=["osaka"]))["outcome"] == "done"
            # Sites have heard of term 2 and refuse the first one's commands.
            stop = StopTopic(1, 99, "gps", "worker-0")
            with pytest.raises(StaleTermError, match="term 1 is over; term 2 leads") as caught:
                await call(first.connection, subjects.site_command("osaka", "stop"), stop, NoneType)
            assert caught.value.term == 2
            assert "gps" in c.sites["osaka"].agent.topic_host.running


async def test_a_coordinator_that_stops_gives_its_lease_back_and_the_next_leads_at_once(city):
    async with city(GPS, report_seconds=0.2) as c, contextlib.AsyncExitStack() as stopped:
        first = await stopped.enter_async_context(coordinator(c, lease=30.0))
        async with coordinator(c, wait=False, lease=30.0) as second:
            assert first.coordinator.term.number() == 1
            await stopped.aclose()
            # It looks at the lease every eighth of a period, and does not wait until it runs out.
            await asyncio.wait_for(second.coordinator.leading.wait(), 15)
            assert second.coordinator.term.number() == 2


async def test_sites_keep_working_without_a_coordinator_and_remember_across_a_restart(city):
    async with city(GPS, report_seconds=0.2) as c:
        async with coordinator(c) as control:
            assert (await control.ask("topic", "move", name="gps", to=["osaka"]))["outcome"] == "done"
            await until(lambda: c.sites["osaka"].agent.topic_host.revision == control.leader.registry.revision)
        # No coordinator now.
        async with nearcast.connect(c.url("tokyo")) as client:
            subscription = await client.subscribe("gps")
            await c.interest_settled()
            await client.publish("gps", {"n": 1})
            assert (await anext(subscription)).data["n"] == 1
        osaka = c.sites["osaka"]
        await osaka.stop()
        await osaka.start()
        assert list(osaka.agent.topic_host.running) == ["gps"]  # nearcast.toml says tokyo


async def test_reports_that_the_store_keeps_for_analytics_still_reach_the_coordinator(city):
    async with city(GPS, report_seconds=0.2) as c:
        connection = await open_connection([c.url("cloud")], name="analytics")
        try:
            await Catalog(connection, "cloud").keep_reports()
            async with coordinator(c) as control:  # waits until every site is heard, and registered by the answers
                await until(lambda: all(site.agent.topic_host.revision >= 0 for site in c.sites.values()))
                assert set(control.leader.registry.sites) == set(c.sites)
            stream = connection.jetstream(domain="cloud")
            kept = [await stream.get_msg(REPORTS_STREAM, number) for number in (1, 2, 3)]
            assert {msgspec.msgpack.decode(one.data, type=SiteReport).site for one in kept} <= set(c.sites)
        finally:
            await connection.close()


async def test_a_coordinator_ends_though_the_write_of_its_lease_takes_a_cancellation_for_its_own(city, monkeypatch):
    """As `asyncio.wait_for` of Python 3.11 does when the answer comes in the same moment."""
    deaf, keep_lease = 0, LeaseKeeper.keep

    async def keep(keeper, changed):
        nonlocal deaf
        try:
            await keep_lease(keeper, changed)
        except asyncio.CancelledError:
            deaf += 1
            await keep_lease(keeper, changed)

    monkeypatch.setattr(LeaseKeeper, "keep", keep)
    async with city(GPS, report_seconds=0.2) as c:
        before = asyncio.all_tasks()
        async with coordinator(c):
            pass
        assert deaf == 1
        assert not [task for task in asyncio.all_tasks() - before if "keep" in repr(task.get_coro())]
