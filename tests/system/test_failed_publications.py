"""A publication that failed is nowhere: an ordered topic does not wait for it once its client says so."""

from __future__ import annotations

import asyncio

import pytest

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until

ORDERS = TopicSpec("orders", ("osaka",), ("osaka", "cloud"), quorum=1, ordered=True)


async def test_newer_ones_of_an_ordered_topic_do_not_wait_a_minute_for_one_that_failed(city) -> None:
    async with (
        city(ORDERS) as c,
        nearcast.connect(c.url("tokyo"), name="shop") as shop,
        nearcast.connect(c.url("osaka"), name="kitchen") as kitchen,
        kitchen.subscribe("orders") as notifications,
    ):
        await shop.publish("orders", {"n": 0}, timeout=30)
        await c.sites["tokyo"].broker.stop()
        await until(lambda: not shop.connection.is_connected)
        failing = [await shop.publish_nowait("orders", {"n": n}, timeout=0.5) for n in (1, 2, 3)]
        for one in failing:
            with pytest.raises(nearcast.QuorumError):
                await one
        await c.sites["tokyo"].broker.start()
        await until(lambda: shop.connection.is_connected)
        for n in (4, 5):
            await shop.publish("orders", {"n": n}, timeout=30)
        async with asyncio.timeout(45):  # it was a minute
            assert [(await anext(notifications)).data["n"] for _ in range(3)] == [0, 4, 5]


async def test_a_worker_that_starts_anew_asks_the_stores_where_an_ordered_topic_goes_on(city) -> None:
    async with (
        city(ORDERS) as c,
        nearcast.connect(c.url("tokyo"), name="shop") as shop,
        nearcast.connect(c.url("osaka"), name="kitchen") as kitchen,
        kitchen.subscribe("orders") as notifications,
    ):
        worker = c.sites["osaka"].workers["worker-0"]
        await shop.publish("orders", {"n": 0}, timeout=30)
        assert (await anext(notifications)).data["n"] == 0
        await worker.stop()
        for n in range(1, 21):
            await shop.publish("orders", {"n": n}, timeout=30)
        await worker.start()

        async def go_on() -> None:
            for n in range(21, 60):
                await shop.publish("orders", {"n": n}, timeout=30)
                await asyncio.sleep(0.1)

        async with asyncio.timeout(45), asyncio.TaskGroup() as group:
            group.create_task(go_on())
            assert [(await anext(notifications)).data["n"] for _ in range(59)] == list(range(1, 60))
