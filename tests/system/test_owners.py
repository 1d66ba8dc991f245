"""Owners know when to stop: a site that cannot renew its lease owns no durable topic when another one does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tests.system.control import coordinator
from tests.system.worker_counts import stats_of_workers

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.site.site_lease import lease_clock
from nearcast.testing import until

if TYPE_CHECKING:
    from nearcast.site.site import Site

EVERYWHERE = ("tokyo", "osaka", "cloud")
GPS = TopicSpec("gps", ("tokyo",), EVERYWHERE, 2)


def silence(site: Site) -> None:
    """Its reports do not reach the coordinator any more; all else does."""

    async def nothing(urgent: bool) -> None:
        await asyncio.sleep(0)

    site.agent._loop._send_report = nothing


def unsilence(site: Site) -> None:
    del site.agent._loop._send_report


async def processed(site: Site) -> int:
    return sum(worker.processed for worker in await stats_of_workers(site))


async def test_an_owner_that_cannot_renew_has_stopped_when_its_topic_is_given_away(city):
    """Before, it went on: its queue group was nearest to the publishers beside it, and they got stale answers."""
    async with city(GPS, report_seconds=0.2) as c, coordinator(c, automatic=True, site_lost_after=2.0) as control:
        tokyo = c.sites["tokyo"]
        got: list[str] = []
        async with (
            nearcast.connect(c.url("tokyo"), name="writer") as writer,
            nearcast.connect(c.url("cloud"), name="reader") as reader,
        ):
            await reader.subscribe("gps", callback=lambda message: got.append(message.id.partition(";")[0]))
            first = (await writer.publish("gps", {"n": 0}, timeout=30)).id
            await until(lambda: first in got)
            silence(tokyo)

            async def given_away() -> bool:
                return not (await control.members("gps"))[0].startswith("tokyo/")

            await until(given_away, limit=60)
            assert "gps" in tokyo.agent.topic_host.running  # it has not heard of it
            before = await processed(tokyo)
            sent = [(await writer.publish("gps", {"n": n}, timeout=30)).id for n in range(1, 31)]
            await until(lambda: set(sent) <= set(got))
            assert await processed(tokyo) == before

            unsilence(tokyo)
            await until(lambda: "gps" not in tokyo.agent.topic_host.running)
            await until(lambda: tokyo.agent.lease.is_valid(lease_clock()))
            again = (await writer.publish("gps", {"n": 31}, timeout=30)).id
            await until(lambda: again in got)
            assert len(got) == len(set(got))


async def test_what_is_sent_again_for_its_quorum_is_processed_by_one_owner(city):
    """Before, the stale owner processed it, and the new one again: each knew the ids of its own publications only."""
    spec = TopicSpec("gps", ("tokyo",), EVERYWHERE, 3)
    async with city(spec, report_seconds=0.2) as c, coordinator(c, automatic=True, site_lost_after=2.0) as control:
        tokyo, osaka = c.sites["tokyo"], c.sites["osaka"]

        async def processed_by_all() -> int:
            return sum([await processed(site) for site in c.sites.values()])

        async def given_away() -> bool:
            return not (await control.members("gps"))[0].startswith("tokyo/")

        async with nearcast.connect(c.url("tokyo"), name="writer", timeout=20) as writer:
            await writer.publish("gps", {"n": 0}, timeout=30)
            await until(lambda: has_processed(processed_by_all, 1))
            silence(tokyo)
            await until(given_away, limit=60)
            await osaka.store.stop()  # from now on there is no quorum, and the client sends again each second
            waiting = [await writer.publish_nowait("gps", {"n": n}, timeout=120) for n in range(1, 101)]
            await until(lambda: has_processed(processed_by_all, 101), limit=60)
            unsilence(tokyo)
            await until(lambda: "gps" not in tokyo.agent.topic_host.running, limit=60)
            await asyncio.sleep(5)
            assert await processed_by_all() == 101
            await osaka.store.start()
            await asyncio.gather(*waiting)
            assert await processed_by_all() == 101


async def has_processed(count: Callable[[], Awaitable[int]], number: int) -> bool:
    return await count() >= number


async def test_an_owner_whose_topic_was_not_given_away_goes_on_when_it_is_heard_again(city):
    async with city(GPS, TopicSpec("plain", ("tokyo",)), report_seconds=0.2) as c:
        tokyo = c.sites["tokyo"]
        got: list[str] = []
        async with coordinator(c, site_lost_after=2.0), nearcast.connect(c.url("tokyo"), name="both") as client:
            for topic in ("gps", "plain"):
                await client.subscribe(topic, callback=lambda message: got.append(message.id.partition(";")[0]))
            silence(tokyo)
            await until(lambda: not tokyo.agent.lease.is_valid(lease_clock()))
            before = await processed(tokyo)
            await client.publish("gps", {"n": 1}, timeout=30)
            plain = (await client.publish("plain", {"n": 1})).id
            await until(lambda: plain in got)  # plain topics promise less, and go on
            assert await processed(tokyo) == before + 1
            unsilence(tokyo)
            await until(lambda: tokyo.agent.lease.is_valid(lease_clock()))
            after = (await client.publish("gps", {"n": 2}, timeout=30)).id
            await until(lambda: after in got)


async def test_a_site_needs_no_lease_before_a_coordinator_was_there_and_gets_one_at_its_start(city):
    async with city(GPS, report_seconds=0.2) as c:
        osaka = c.sites["osaka"]
        assert not osaka.agent.lease.required
        async with coordinator(c):
            await until(lambda: osaka.agent.lease.required and osaka.agent.lease.is_valid(lease_clock()))
            await osaka.stop()
            await osaka.start()  # the answer to its registration grants one
            assert osaka.agent.lease.required
            await until(lambda: osaka.agent.lease.is_valid(lease_clock()))


async def test_durable_topics_go_on_while_no_coordinator_leads(city):
    """They waited for one: with the site that had the coordinators' state, all of them stopped (chaos, seed 6)."""
    async with city(GPS, report_seconds=0.2) as c:
        tokyo, got = c.sites["tokyo"], []
        async with nearcast.connect(c.url("tokyo"), name="both") as client:
            await client.subscribe("gps", callback=lambda message: got.append(message.id.partition(";")[0]))
            async with coordinator(c, site_lost_after=12.0):
                await until(lambda: all(len(site.agent._loop._sites) == 3 for site in c.sites.values()))
                await until(lambda: tokyo.agent.lease.is_valid(lease_clock()))
            granted_until = tokyo.agent.lease.until
            await until(lambda: lease_clock() > granted_until, limit=60)
            assert tokyo.agent.lease.is_valid(lease_clock())
            after = (await client.publish("gps", {"n": 1}, timeout=30)).id
            await until(lambda: after in got)
