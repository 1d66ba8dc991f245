"""Acknowledged means kept: by as many stores as the quorum says, whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import RunningSites, until

EVERYWHERE = ("tokyo", "osaka", "cloud")


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def unmount(path: str) -> None:
    subprocess.run(["umount", path], check=True)


async def ids_at(c: RunningSites, site: str, topic: str) -> list[str]:
    """The ids a site's own store holds, read past the client."""
    async with nearcast.connect(c.url(site)) as client:
        js = client.connection.jetstream(domain=site)
        info = await js.stream_info(topic)
        sequences = range(info.state.first_seq, info.state.last_seq + 1)
        return [(await js.get_msg(topic, n, direct=True)).headers["Nats-Msg-Id"] for n in sequences]


async def test_publish_returns_when_the_quorum_has_it(city) -> None:
    async with city(TopicSpec("log", replicas=EVERYWHERE, quorum=2)) as c, nearcast.connect(c.url("tokyo")) as client:
        receipt = await client.publish("log", {"n": 1})
        assert len(receipt.stores) == 2
        assert set(receipt.stores) < set(EVERYWHERE)
        receipt = await client.publish("log", {"n": 2}, quorum=3)
        assert set(receipt.stores) == set(EVERYWHERE)
        for site in EVERYWHERE:
            assert receipt.id in await ids_at(c, site, "log")


async def test_a_quorum_that_cannot_be_met_is_refused(city) -> None:
    async with city(TopicSpec("log", replicas=("tokyo",))) as c, nearcast.connect(c.url("tokyo")) as client:
        with pytest.raises(nearcast.InputError, match="quorum is 2; the topic is kept by tokyo"):
            await client.publish("log", 1, quorum=2)
        with pytest.raises(nearcast.InputError, match="quorum is 1; the topic is kept by no stores"):
            await client.publish("other", 1, quorum=1)


async def test_too_few_stores_raise_an_error_that_names_who_answered(city) -> None:
    async with city(TopicSpec("log", replicas=EVERYWHERE, quorum=3)) as c, nearcast.connect(c.url("tokyo")) as client:
        await client.publish("log", 0)
        await c.sites["osaka"].store.stop()
        with pytest.raises(nearcast.QuorumError) as caught:
            await client.publish("log", 1, timeout=10)  # long enough to send it again, to no avail
        assert set(caught.value.answered) == {"tokyo", "cloud"}
        assert caught.value.missing == ("osaka",)
        assert caught.value.needed == 3
        for site in ("tokyo", "cloud"):
            held = await ids_at(c, site, "log")
            assert held.count(caught.value.id) == 1, "what was sent again is stored once"


async def test_no_acknowledged_message_is_lost_when_a_store_is_killed_and_comes_back(city) -> None:
    async with city(TopicSpec("log", replicas=EVERYWHERE, quorum=2)) as c:
        async with nearcast.connect(c.url("tokyo")) as client, client.subscribe("log") as live:
            store = c.sites["osaka"].store
            receipts = []

            async def publish() -> None:
                for n in range(3000):
                    receipts.append(await client.publish_nowait("log", {"n": n}, timeout=30))
                    await asyncio.sleep(0.001)

            publishing = asyncio.create_task(publish())
            await until(lambda: len(receipts) > 500)
            os.kill(store.pid, signal.SIGKILL)
            await publishing
            acknowledged = [(await receipt).id for receipt in receipts]
            assert len(set(acknowledged)) == 3000
            await until(lambda: store.restarts == 1)
            held = {site: await ids_at(c, site, "log") for site in ("tokyo", "cloud")}

            async def osaka_is_back() -> bool:
                try:
                    held["osaka"] = await ids_at(c, "osaka", "log")
                except Exception:
                    return False
                return True

            await until(osaka_is_back)
            for message_id in acknowledged:
                copies = sum(message_id in set_of for set_of in map(set, held.values()))
                assert copies >= 2, message_id
            for site, ids in held.items():
                assert len(set(ids)) == len(ids), f"{site} holds a message twice"
            seen = [(await anext(live)).id for _ in range(3000)]
            assert sorted(seen) == sorted(acknowledged), "live subscribers get each once, sent again or not"


async def test_a_killed_broker_comes_back_and_clients_with_it(city) -> None:
    async with city(TopicSpec("log", replicas=EVERYWHERE, quorum=2), TopicSpec("gps.*", ("tokyo",))) as c:
        async with (
            nearcast.connect(c.url("tokyo")) as client,
            nearcast.connect(c.url("osaka")) as other,
            client.subscribe("plain") as plain,
            client.subscribe("gps.*") as processed,
        ):
            broker = c.sites["tokyo"].broker
            os.kill(broker.pid, signal.SIGKILL)
            await until(lambda: broker.restarts == 1 and client.reconnects == 1)
            # Acknowledged by two stores again: the leaf node and the gateways have found the broker.
            assert len((await client.publish("log", 1, timeout=30)).stores) == 2

            async def arrives(subscription: nearcast.Subscription, topic: str) -> bool:
                await other.publish(topic, {"n": 1})
                await asyncio.sleep(0.1)
                return subscription.received > 0

            await until(lambda: arrives(plain, "plain"))
            await until(lambda: arrives(processed, "gps.car"))


async def test_a_full_disk_is_an_error_of_that_store_alone(city, tmp_path) -> None:
    async with city(TopicSpec("log", replicas=("tokyo", "osaka"), quorum=1)) as c:
        async with nearcast.connect(c.url("cloud")) as client:
            await client.publish("log", {"n": 0}, quorum=2)
            full = c.sites["osaka"]
            await full.store.stop()
            # A file system of its own, nearly full: what a disk that fills up looks like to the store.
            disk = full.spec.store.directory
            mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk))
            try:
                await full.store.start()
                await full.agent.client_services.stop()
                await full.agent.client_services.start()
                (disk / "filler").write_bytes(b"x" * (200 << 10))
                payload = b"x" * 100_000
                with pytest.raises(nearcast.QuorumError) as caught:
                    await asyncio.gather(*(client.publish("log", payload, quorum=2, timeout=10) for _ in range(5)))
                assert caught.value.answered == ("tokyo",)
                assert len((await client.publish("log", payload, quorum=1)).stores) == 1
            finally:
                await full.store.stop()
                unmount(str(disk))
