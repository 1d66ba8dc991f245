"""Processing happens at the publisher's home if that site manages the topic, else at the nearest that does."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.system.worker_counts import stats_of_workers

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import RunningSites, until


async def stats(c: RunningSites) -> dict[str, tuple[int, int]]:
    """Processed and delegated, per site that has workers."""
    found = {name: await stats_of_workers(site) for name, site in c.sites.items()}
    return {n: (sum(s.processed for s in w), sum(s.delegated for s in w)) for n, w in found.items() if w}


async def publish_from(c: RunningSites, site: str, topic: str, number: int) -> None:
    async with nearcast.connect(c.url(site)) as client:
        for n in range(number):
            await client.publish(topic, {"n": n})


async def processed(c: RunningSites, total: int) -> bool:
    return sum(p for p, _ in (await stats(c)).values()) == total


async def test_a_message_is_processed_at_the_home_of_its_publisher(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo", "osaka", "cloud"))) as c:
        for site, number in (("tokyo", 30), ("osaka", 20), ("cloud", 10)):
            await publish_from(c, site, "gps.car", number)
        await until(lambda: processed(c, 60))
        assert await stats(c) == {"tokyo": (30, 0), "osaka": (20, 0), "cloud": (10, 0)}


async def test_a_site_that_does_not_manage_the_topic_delegates(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo", "cloud")), TopicSpec("ring", ("cloud",))) as c:
        await publish_from(c, "tokyo", "gps.car", 10)
        await publish_from(c, "osaka", "gps.car", 10)
        await publish_from(c, "osaka", "ring", 5)
        await until(lambda: processed(c, 25))
        after = await stats(c)
        assert after["tokyo"][0] - after["tokyo"][1] == 10
        assert after["tokyo"][1] + after["cloud"][1] == 15
        assert after["cloud"] == (after["cloud"][1], after["cloud"][1]), "the cloud has no publisher of its own"


async def test_subscribers_everywhere_get_each_notification_once(city) -> None:
    async with (
        city(TopicSpec("gps.*", ("tokyo", "osaka"))) as c,
        nearcast.connect(c.url("tokyo")) as near,
        nearcast.connect(c.url("cloud")) as far,
        near.subscribe("gps.*") as at_tokyo,
        far.subscribe("gps.car") as at_cloud,
    ):
        await c.interest_settled()
        await publish_from(c, "tokyo", "gps.car", 100)
        for subscription in (at_tokyo, at_cloud):
            got = [(await anext(subscription)).data["n"] for _ in range(100)]
            assert got == list(range(100)), "one publisher's messages stay in order"


async def test_spools_of_all_managing_sites_hold_the_message_and_copies_go_only_to_others(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo", "osaka")), TopicSpec("ring", ("cloud",))) as c:
        async with nearcast.connect(c.url("cloud")) as spy:
            copies: list[str] = []
            await spy.connection.subscribe_raw("spl.>", lambda subject, *rest: copies.append(subject))
            await spy.flush()
            await c.interest_settled()
            await publish_from(c, "tokyo", "gps.car", 5)
            await publish_from(c, "osaka", "ring", 5)
            await until(lambda: processed(c, 10))
            async with nearcast.connect(c.url("osaka")) as client, client.subscribe("gps.car") as subscription:
                await until(lambda: len(copies) >= 5)
                await until(lambda: _received_copies(c, "osaka", 5))
                await client.publish("gps.car", {"n": 5, "do": "past"})
                assert (await anext(subscription)).data == {"n": 5, "past": [0, 1, 2, 3, 4]}
            assert set(copies) == {"spl.gps.car"}, "a topic with one managing site sends no copies"


async def _received_copies(c: RunningSites, site: str, number: int) -> bool:
    return (await stats_of_workers(c.sites[site]))[0].copies_received == number


async def test_a_bad_message_costs_itself_only(city) -> None:
    async with (
        city(TopicSpec("gps.*", ("tokyo",))) as c,
        nearcast.connect(c.url("tokyo")) as client,
        client.subscribe("gps.*") as subscription,
        client.dead_letters("gps.*") as dead,
    ):
        bad = {10: "raise", 20: "hang", 30: "exit", 40: "kill"}
        for n in range(60):
            await client.publish("gps.car", {"n": n, "do": bad.get(n)})
        await client.publish("gps.car", b"\xff not JSON")
        got = [(await anext(subscription)).data["n"] for _ in range(56)]
        assert got == [n for n in range(60) if n not in bad]
        letters = [await anext(dead) for _ in range(5)]
        assert [letter.data["n"] for letter in letters[:4]] == list(bad)
        reasons = [letter.reason for letter in letters]
        assert reasons[0] == "ValueError: on purpose"
        assert reasons[1] == "took longer than 6 s"
        assert reasons[2] == "the processor's process ended with code 7"
        assert reasons[3] == "the processor's process was ended by signal 9"
        assert reasons[4].startswith("PayloadError: ")


async def test_a_notification_larger_than_allowed_is_a_dead_letter_and_nothing_behind_it_is_lost(city) -> None:
    async with (
        city(TopicSpec("gps.*", ("tokyo",))) as c,
        nearcast.connect(c.url("tokyo")) as client,
        client.subscribe("gps.*") as subscription,
        client.dead_letters("gps.*") as dead,
    ):
        await client.publish("gps.car", {"n": 0, "do": "shout", "bytes": 2_000_000})
        await client.publish("gps.car", {"n": 1})
        await client.publish("gps.car", {"n": 2, "do": "shout", "bytes": 1 << 20})  # as large as a publication may be
        assert (await anext(subscription)).data["n"] == 1
        assert len((await anext(subscription)).payload) == 1 << 20
        letter = await anext(dead)
        assert letter.data["n"] == 0
        assert letter.reason == "the processor made a notification of 2000000 bytes; at most 1048576 are allowed"


async def test_the_spool_is_there_after_the_processor_died(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo",))) as c:
        async with nearcast.connect(c.url("tokyo")) as client, client.subscribe("gps.*") as subscription:
            for n in range(3):
                await client.publish("gps.car", {"n": n, "do": "nothing"})
            await client.publish("gps.car", {"n": 3, "do": "kill"})
            await client.publish("gps.car", {"n": 4, "do": "past"})
            assert (await anext(subscription)).data == {"n": 4, "past": [0, 1, 2, 3]}


async def test_a_killed_worker_comes_back_with_its_spool(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo",))) as c:
        async with nearcast.connect(c.url("tokyo")) as client, client.subscribe("gps.*") as subscription:
            await client.publish("gps.car", {"n": 0})
            await anext(subscription)
            worker = c.sites["tokyo"].workers["worker-0"]
            os.kill(worker.pid, signal.SIGKILL)
            await until(lambda: worker.restarts == 1)
            await client.publish("gps.car", {"n": 1, "do": "past"})
            async with asyncio.timeout(20):
                assert (await anext(subscription)).data == {"n": 1, "past": [0]}


async def test_a_processor_that_is_far_behind_sees_the_past_of_its_message_and_not_the_future(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo",))) as c:
        async with nearcast.connect(c.url("tokyo")) as client, client.subscribe("gps.*") as subscription:
            for n in range(3000):
                await client.publish("gps.car", {"n": n, "do": "past"})
            for n in range(3000):
                assert (await anext(subscription)).data == {"n": n, "past": list(range(max(0, n - 20), n))}
