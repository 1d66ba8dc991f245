"""What a client promises its user: order, bounded buffers, clear errors, reconnection."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats.connection import open_connection
from nearcast.nats.stamp import header_block
from nearcast.nats.tasks import cancel_and_wait, retry
from nearcast.site.ports import free_ports
from nearcast.site.servers import server_binary, server_is_ready
from nearcast.testing import until


@pytest.fixture
async def bare() -> AsyncIterator[str]:
    """The address of a plain nats-server, which is nobody's site."""
    port = free_ports()
    process = subprocess.Popen([server_binary(), "-p", str(port)], stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        await retry(lambda: server_is_ready("127.0.0.1", port), within=60, on=OSError)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def test_publish_and_subscribe(bare: str) -> None:
    async with nearcast.connect(bare, name="alice") as alice, nearcast.connect(bare) as bob:
        subscription = await bob.subscribe("chat.*")
        await alice.publish("chat.room", {"text": "hello"})
        message = await anext(subscription)
        assert (message.topic, message.data, message.publisher) == ("chat.room", {"text": "hello"}, "alice")
        assert message.published is not None
        assert message.id.startswith("alice~")


async def test_callbacks_are_called_in_order_and_survive_their_own_errors(bare: str) -> None:
    seen: list[int] = []

    async def callback(message: nearcast.Message) -> None:
        if message.data == 3:
            raise ValueError("not this one")
        await asyncio.sleep(0)
        seen.append(message.data)

    async with nearcast.connect(bare) as client:
        await client.subscribe("numbers", callback=callback)
        plain: list[int] = []
        await client.subscribe("numbers", callback=lambda message: plain.append(message.data))
        for n in range(6):
            await client.publish("numbers", n)
        await until(lambda: len(seen) == 5 and len(plain) == 6)
        assert seen == [0, 1, 2, 4, 5]
        assert plain == [0, 1, 2, 3, 4, 5]


async def test_bytes_and_other_codecs(bare: str) -> None:
    class MessagePack:
        encode = staticmethod(msgspec.msgpack.encode)
        decode = staticmethod(msgspec.msgpack.decode)

    async with nearcast.connect(bare, codec=MessagePack()) as packed, nearcast.connect(bare) as plain:
        as_packed, as_plain = await packed.subscribe("x"), await plain.subscribe("x")
        await packed.publish("x", {"a": 1})
        assert (await anext(as_packed)).data == {"a": 1}
        message = await anext(as_plain)
        assert message.payload == msgspec.msgpack.encode({"a": 1})
        with pytest.raises(nearcast.PayloadError, match="of topic x"):
            _ = message.data
        await plain.publish("x", b"\x00raw")
        assert (await anext(as_plain)).payload == b"\x00raw"


async def test_a_slow_reader_loses_the_oldest_or_is_told(bare: str) -> None:
    async with nearcast.connect(bare) as client:
        oldest = await client.subscribe("x", buffer=10)
        strict = await client.subscribe("x", buffer=10, on_overflow="raise")
        for n in range(25):
            await client.publish("x", n)
        await until(lambda: oldest.received == 25 and strict.received == 25)
        assert oldest.dropped == 15
        assert [(await anext(oldest)).data for _ in range(10)] == list(range(15, 25))
        with pytest.raises(nearcast.SlowConsumerError) as caught:
            await anext(strict)
        assert caught.value.dropped == 15
        assert [(await anext(strict)).data for _ in range(10)] == list(range(10)), (
            "what was there before is still there"
        )


async def test_bad_input_is_refused_before_anything_is_sent(bare: str) -> None:
    async with nearcast.connect(bare) as client:
        for topic in ("", "a..b", "a b", "a.*", ">", "a/b", "$SYS.x", ".a", "a.", "x" * 300):
            with pytest.raises(nearcast.TopicError):
                await client.publish(topic, 1)
        for pattern in ("", "a..b", "a.>.b", "a b"):
            with pytest.raises(nearcast.TopicError):
                client.subscribe(pattern)
        limit = client.connection.max_payload - 4096
        await client.publish("x", b"x" * limit)
        with pytest.raises(nearcast.PayloadTooLargeError) as caught:
            await client.publish("x", b"x" * (limit + 1))
        assert caught.value.limit == limit
        with pytest.raises(nearcast.InputError, match="cannot be encoded"):
            await client.publish("x", object())
        await client.publish("x", "still works")
        await client.flush()
    with pytest.raises(nearcast.NearcastError, match="closed"):
        await client.publish("x", 1)


class Reading(msgspec.Struct):
    sensor: str
    celsius: float


async def test_typed_payloads_are_validated_and_the_others_counted_and_reported(bare: str) -> None:
    errors: list[nearcast.PayloadError] = []
    async with nearcast.connect(bare) as client:
        subscription = await client.subscribe("readings", type=Reading, on_error=errors.append)
        called: list[Reading] = []
        by_callback = await client.subscribe(
            "readings", type=Reading, callback=lambda message: called.append(message.data)
        )
        bad = [b"", b"{", b"null", b'{"sensor": "a"}', b'{"sensor": 7, "celsius": 1}']
        for payload in bad:
            await client.publish("readings", payload)
        await client.publish("readings", Reading("a", 20.5))
        await client.publish("readings", b"[1]")
        await client.publish("readings", {"sensor": "b", "celsius": 3, "unknown": "fields are left out"})
        assert [(await anext(subscription)).data for _ in range(2)] == [Reading("a", 20.5), Reading("b", 3.0)]
        assert (subscription.received, subscription.invalid) == (8, 6)
        assert [error.message.payload for error in errors] == [*bad, b"[1]"]
        assert "of topic readings: Expected `str`, got `int` - at `$.sensor`" in str(errors[4])
        await until(lambda: called == [Reading("a", 20.5), Reading("b", 3.0)])
        assert by_callback.invalid == 6
        with pytest.raises(nearcast.InputError, match="on_error needs a type"):
            client.subscribe("readings", on_error=errors.append)


async def test_typed_payloads_with_another_codec_and_an_on_error_that_fails(bare: str) -> None:
    class MessagePack:
        encode = staticmethod(msgspec.msgpack.encode)
        decode = staticmethod(msgspec.msgpack.decode)

    async def fail(error: nearcast.PayloadError) -> None:
        raise RuntimeError("on purpose")

    async with nearcast.connect(bare, codec=MessagePack()) as client:
        subscription = await client.subscribe("readings", type=Reading, on_error=fail)
        await client.publish("readings", b"\xc1")
        await client.publish("readings", {"sensor": "a", "celsius": 1.0})
        assert (await anext(subscription)).data == Reading("a", 1.0)
        assert subscription.invalid == 1


async def test_closed_subscriptions_are_forgotten(bare: str) -> None:
    async with nearcast.connect(bare) as client:
        kept = await client.subscribe("x")
        references = []
        for _ in range(20):
            async with client.subscribe("x", callback=lambda message: None) as subscription:
                references.append(weakref.ref(subscription))
            client.subscribe("never.begun")
        del subscription
        await asyncio.sleep(0)
        gc.collect()
        assert [reference() for reference in references if reference() is not None] == []
        await client.publish("x", 1)
        assert (await anext(kept)).data == 1


async def test_addresses_and_a_coordinator_are_not_both_taken() -> None:
    with pytest.raises(nearcast.InputError, match="takes urls or coordinator, not both"):
        nearcast.connect("nats://127.0.0.1:4222", coordinator="nats://127.0.0.1:4223")
    with pytest.raises(nearcast.InputError, match="urls is empty"):
        nearcast.connect([])


async def test_no_broker_is_one_clear_sentence() -> None:
    with pytest.raises(nearcast.ConnectionLostError, match="cannot connect to nats:"):
        async with nearcast.connect("nats://127.0.0.1:1", timeout=0.5):
            pass
    with pytest.raises(nearcast.InputError, match="client name"):
        nearcast.connect(name="not a name")


async def test_what_is_published_while_the_broker_is_away_arrives_when_it_is_back() -> None:
    port = free_ports()
    url, command = f"nats://127.0.0.1:{port}", [server_binary(), "-p", str(port)]
    first = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    async with nearcast.connect(url, timeout=20) as client, client.subscribe("x") as subscription:
        await client.publish("x", "first")
        await client.publish("y", "first")
        assert (await anext(subscription)).data == "first"
        first.kill()
        await first.wait()
        await until(lambda: not client.connection.is_connected)
        for n in range(100):
            await client.publish("x", n)
        for _ in range(82):
            await client.publish("y", b"x" * 100_000)
        with pytest.raises(nearcast.ConnectionLostError, match="already wait"):
            await client.publish("y", b"x" * 200_000)
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(30):
                assert [(await anext(subscription)).data for _ in range(100)] == list(range(100))
            await until(lambda: client.reconnects == 1)
        finally:
            second.terminate()
            await second.wait()


async def test_a_message_that_cannot_be_taken_does_not_end_the_connection(bare: str) -> None:
    async with nearcast.connect(bare) as client, client.subscribe("x") as subscription:
        await client.connection.subscribe_raw("odd", lambda *_: 1 / 0)
        client.connection.send("odd", b"", b"")
        await client.publish("x", 1)
        assert (await anext(subscription)).data == 1


async def test_malformed_messages_disturb_nobody(city) -> None:
    topic = TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1)
    async with city(topic, names=("tokyo", "osaka")) as c:
        async with nearcast.connect(c.url("osaka")) as client, client.subscribe("gps.*") as subscription:
            await c.interest_settled()
            raw = client.connection
            for payload in (b"", b"\xff\xfe", b"{", b"null", b"[]", b'"text"'):
                raw.send("pub.gps.car", b"", payload)
                raw.send("pub.gps.car", header_block(b"no stamp of ours"), payload)
                raw.send("spl.gps.car", b"NATS/1.0\r\nFoo: bar\r\n\r\n", payload)
                for service in (
                    "api.topics.tokyo",
                    "api.history.tokyo.find",
                    "api.history.tokyo.read",
                    "adv.store.tokyo",
                ):
                    raw.send(service, b"", payload, "nowhere")
            await client.publish("gps.car", {"n": 1})
            async with asyncio.timeout(20):
                while (message := await anext(subscription)).publisher != client.name:
                    pass
            assert message.data["n"] == 1
            assert [m.publisher async for m in client.history("gps.car", last=1)] == [client.name]
            assert await client.topics("gps.car")


async def test_wildcards_take_notifications_of_processed_topics_and_publications_of_others(city) -> None:
    async with city(TopicSpec("gps.car", ("tokyo",)), names=("tokyo",)) as c:
        async with nearcast.connect(c.url("tokyo")) as client, client.subscribe("gps.*") as subscription:
            await client.publish("gps.car", {"n": 1})
            await client.publish("gps.bus", {"n": 2})
            got = {m.topic: m.data async for m in _first(subscription, 2)}
            assert got["gps.bus"] == {"n": 2}
            assert set(got["gps.car"]) == {"n", "pid"}
            await asyncio.sleep(0.1)
            assert not subscription.pending, "the publication to the processed topic is not delivered"


async def _first(subscription: nearcast.Subscription, number: int) -> AsyncIterator[nearcast.Message]:
    for _ in range(number):
        yield await anext(subscription)


async def test_who_gives_up_a_flush_does_not_make_the_connection_deaf(bare: str) -> None:
    connection = await open_connection([bare], name="impatient")
    try:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        await connection.subscribe_raw("a", lambda subject, reply, payload, headers: heard.put_nowait(payload))
        given_up = asyncio.create_task(connection.flush())
        await asyncio.sleep(0)  # the question is on its way, its answer is not here yet
        await cancel_and_wait(given_up)
        assert given_up.cancelled()
        connection.send("a", b"", b"hello")
        async with asyncio.timeout(20):
            assert await heard.get() == b"hello"
    finally:
        await connection.close()


async def test_a_reader_that_stops_over_an_error_connects_again(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    back = asyncio.Event()

    async def came_back() -> None:
        back.set()

    async def broken() -> None:
        monkeypatch.undo()
        raise RuntimeError("on purpose")

    connection = await open_connection([bare], name="hit", on_reconnect=came_back)
    try:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        await connection.subscribe_raw("a", lambda subject, reply, payload, headers: heard.put_nowait(payload))
        monkeypatch.setattr(connection, "_process_pong", broken)
        with pytest.raises(TimeoutError):
            await connection.flush(timeout=1)
        async with asyncio.timeout(20):
            await back.wait()
            connection.send("a", b"", b"hello")
            assert await heard.get() == b"hello"
    finally:
        await connection.close()


async def test_many_first_publications_at_once_look_their_topic_up_once(city: Callable[..., Any]) -> None:
    """A service answers a thousand requests at the same time; five thousand records fed at once were refused."""
    async with city(TopicSpec("log", replicas=("tokyo",), quorum=1)) as running:
        async with nearcast.connect(running.url("tokyo")) as client:
            receipts = await asyncio.gather(*(client.publish("log", {"n": n}, timeout=30) for n in range(3_000)))
        assert len({receipt.id for receipt in receipts}) == 3_000
