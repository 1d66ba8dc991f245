"""The past is asked for at the nearest store that keeps it, filtered there, and joins the live messages seamlessly."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import nearcast
from nearcast import field
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until

LOG = TopicSpec("log", replicas=("tokyo", "osaka", "cloud"), quorum=3)


async def fill(client: nearcast.Client, topic: str, number: int) -> None:
    receipts = [await client.publish_nowait(topic, {"n": n, "even": n % 2 == 0}, timeout=60) for n in range(number)]
    for receipt in receipts:
        await receipt


async def numbers(query) -> list[int]:
    return [message.data["n"] async for message in query]


async def test_filters_are_applied_at_the_store(city) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("osaka")) as client:
        await fill(client, "log", 100)
        middle = datetime.now(UTC)
        await asyncio.sleep(0.05)
        await fill(client, "log", 100)
        whole = list(range(100))
        assert await numbers(client.history("log")) == whole + whole
        assert await numbers(client.history("log", since=middle)) == whole
        assert await numbers(client.history("log", until=middle)) == whole
        assert await numbers(client.history("log", until=middle, last=3)) == [97, 98, 99]
        assert await numbers(client.history("log", last=7)) == whole[-7:]
        few = client.history("log", since=middle, where=(field("n") < 10) & field("even").one_of(True))
        assert await numbers(few) == [0, 2, 4, 6, 8]
        assert few.bytes_received < 1000, "only matches cross the network"
        assert await numbers(client.history("log", where=~field("n").exists())) == []
        assert await numbers(client.history("log", where=field("even") == True, last=2)) == [96, 98]  # noqa: E712
        assert await numbers(client.history("log", until=middle - timedelta(hours=1))) == []


async def test_the_last_of_many_are_found_from_the_end(city) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("osaka")) as client:
        await fill(client, "log", 3000)
        assert await numbers(client.history("log", last=1000)) == list(range(2000, 3000))
        assert await numbers(client.history("log", last=5000)) == list(range(3000))
        assert await numbers(client.history("log", last=2, where=field("n") < 10)) == [8, 9]


async def test_a_topic_of_a_family_gives_its_own_messages_only(city) -> None:
    family = TopicSpec("gps.*", replicas=("osaka",), quorum=1)
    async with city(family) as c, nearcast.connect(c.url("tokyo")) as client:
        await fill(client, "gps.a", 3)
        await fill(client, "gps.b", 2)
        assert await numbers(client.history("gps.a")) == [0, 1, 2]
        assert [m.topic async for m in client.history("gps.*")] == ["gps.a"] * 3 + ["gps.b"] * 2


async def test_a_processed_topic_gives_notifications_or_publications(city) -> None:
    topic = TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1)
    async with city(topic) as c, nearcast.connect(c.url("tokyo")) as client:
        await fill(client, "gps.a", 3)

        async def kept() -> bool:
            return len(await numbers(client.history("gps.a"))) == 3

        await until(kept)
        assert all("pid" in m.data for m in [m async for m in client.history("gps.a")])
        assert all("even" in m.data for m in [m async for m in client.history("gps.a", publications=True)])


async def test_errors_say_what_is_wrong(city) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("osaka")) as client:
        with pytest.raises(nearcast.HistoryError, match="no store advertises it"):
            await numbers(client.history("nowhere"))
        with pytest.raises(nearcast.InputError, match="has no time zone"):
            client.history("log", since=datetime.now())
        with pytest.raises(nearcast.InputError, match="last is 0"):
            client.history("log", last=0)
        with pytest.raises(nearcast.InputError, match="make a condition"):
            client.history("log", where="n > 1")
        with pytest.raises(nearcast.InputError, match="replay needs one durable topic"):
            await client.subscribe("nowhere", replay=True)


async def test_history_ends_with_the_reason_when_stores_answer_but_cannot_read(city, monkeypatch) -> None:
    monkeypatch.setattr("nearcast.client.history._UNAVAILABLE_LIMIT", 1.0, raising=False)
    async with city(TopicSpec("log", replicas=("tokyo", "osaka"))) as c, nearcast.connect(c.url("tokyo")) as client:
        for site in ("tokyo", "osaka"):
            await client.connection.jetstream(domain=site).delete_stream("log")
        async with asyncio.timeout(30):
            with pytest.raises(
                nearcast.HistoryError, match="no store that advertises it answers; the last one asked: stream log"
            ):
                await anext(aiter(client.history("log")))


async def test_replay_goes_over_into_live_without_gap_or_duplicate(city) -> None:
    total, before = 50_000, 20_000
    topic = TopicSpec("log", replicas=("osaka",), quorum=1)
    async with city(topic, names=("tokyo", "osaka")) as c:
        async with (
            nearcast.connect(c.url("tokyo"), name="writer") as writer,
            nearcast.connect(c.url("osaka")) as reader,
        ):
            await fill(writer, "log", before)

            async def keep_on() -> None:
                receipts = []
                for n in range(before, total):
                    receipts.append(await writer.publish_nowait("log", {"n": n}, timeout=60))
                    if n % 50 == 0:
                        await asyncio.sleep(0.005)
                for receipt in receipts:
                    await receipt

            writing = asyncio.create_task(keep_on())
            await asyncio.sleep(0.5)
            async with reader.subscribe("log", replay=True) as subscription:
                async with asyncio.timeout(120):
                    got = [(await anext(subscription)).data["n"] for _ in range(total)]
                await writing
                assert got == list(range(total))
                await asyncio.sleep(0.2)
                assert not subscription.pending, "nothing comes twice afterwards either"


@pytest.mark.parametrize(("replay", "past"), [(3, [7, 8, 9]), (timedelta(hours=1), list(range(10)))])
async def test_replay_of_the_last_few_and_of_a_time_span(city, replay, past: list[int]) -> None:
    async with city(LOG) as c, nearcast.connect(c.url("tokyo")) as client:
        await fill(client, "log", 10)
        async with client.subscribe("log", replay=replay) as subscription:
            assert [(await anext(subscription)).data["n"] for _ in past] == past
            await client.publish("log", {"n": 99})
            assert (await anext(subscription)).data["n"] == 99
