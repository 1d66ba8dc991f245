"""What is promised for topics without stores: at most once, never twice, in order on one path."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.system.conftest import PROCESSORS

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import RunningSites, sites, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
NUMBER = 500


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningSites]:
    """Tokyo runs the processor of `gps`; `chat` has none."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "plain_processors.py").write_text(PROCESSORS)
    topics = (TopicSpec("gps", ("tokyo",)), TopicSpec("chat"))
    async with sites(
        *topics, names=("tokyo", "osaka"), processors=["plain_processors"], search_path=[str(folder)], folder=folder
    ) as running:
        yield running


async def test_only_who_is_subscribed_when_it_is_published_gets_it(plain: RunningSites) -> None:
    got: list[int] = []
    async with (
        nearcast.connect(plain.url("tokyo"), name="talker") as talker,
        nearcast.connect(plain.url("osaka"), name="listener") as listener,
    ):
        for n in (1, 4):
            await talker.publish("chat", {"n": n})
            await talker.flush()
            await asyncio.sleep(0.3)  # it has passed by, wherever it went
            async with listener.subscribe("chat") as messages:
                await plain.interest_settled()
                await talker.publish("chat", {"n": n + 1})
                got.append((await anext(messages)).data["n"])
            await listener.flush()
            await plain.interest_settled()
            await talker.publish("chat", {"n": n + 2})
            await talker.flush()
            await asyncio.sleep(0.3)  # it has passed by
        assert got == [2, 5]


@pytest.mark.parametrize("topic", ["gps", "chat"])
async def test_each_comes_once_and_in_the_order_of_its_publisher(plain: RunningSites, topic: str) -> None:
    """Processed at the publisher's own site or at another one, or not at all."""
    got: list[tuple[str, int]] = []
    async with (
        nearcast.connect(plain.url("tokyo"), name="near") as near,
        nearcast.connect(plain.url("osaka"), name="far") as far,
        nearcast.connect(plain.url("osaka"), name="reader") as reader,
    ):
        await reader.subscribe(topic, callback=lambda message: got.append((message.publisher, message.data["n"])))
        await plain.interest_settled()

        async def publish(client: nearcast.Client) -> None:
            for n in range(NUMBER):
                await client.publish(topic, {"n": n})
                if n % 50 == 0:
                    await asyncio.sleep(0)

        await asyncio.gather(publish(near), publish(far))
        await until(lambda: len(got) >= 2 * NUMBER, limit=60)
        await reader.flush()
        for name in ("near", "far"):
            assert [n for publisher, n in got if publisher == name] == list(range(NUMBER))


async def test_what_a_killed_worker_had_is_not_processed_again(plain: RunningSites) -> None:
    """It may be lost. All that is published when the worker is back is processed, and nothing comes twice."""
    got: Counter[int] = Counter()
    worker = plain.sites["tokyo"].workers["worker-0"]
    async with (
        nearcast.connect(plain.url("tokyo"), name="sensor") as sensor,
        nearcast.connect(plain.url("osaka"), name="reader") as reader,
    ):
        await reader.subscribe("gps", callback=lambda message: got.update([message.data["n"]]))
        await plain.interest_settled()
        published = 0
        while not worker.restarts:
            if published == NUMBER:
                await until(lambda: bool(got))
                os.kill(worker.pid, signal.SIGKILL)
            await sensor.publish("gps", {"n": published})
            published += 1
            await asyncio.sleep(0.001)
        await plain.interest_settled()
        last = range(published, published + NUMBER)
        for n in last:
            await sensor.publish("gps", {"n": n})
        await until(lambda: all(got[n] for n in last), limit=60)
        assert set(got.values()) == {1}
