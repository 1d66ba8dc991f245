"""Requests, buckets and leases against a real broker and a real store."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from nats.errors import TimeoutError as NatsTimeoutError

from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator
from nearcast.nats.kv import Bucket, BucketNotFoundError, ConflictError
from nearcast.nats.lease import LeaseKeeper, LeaseMachine
from nearcast.nats.rpc import Endpoint, NoAnswerError, RemoteError, Server, StaleTermError, call
from nearcast.testing import until

if TYPE_CHECKING:
    from nats.aio.msg import Msg


class Question(msgspec.Struct):
    number: int


class Double(msgspec.Struct):
    number: int
    raw: bytes = b""


async def answer(question: Question) -> Double:
    match question.number:
        case 0:
            raise InputError("zero has no double\nworth speaking of")
        case 1:
            raise StaleTermError("term 1 is over; term 7 leads", 7)
        case 2:
            raise ZeroDivisionError("a mistake of the handler")
        case 3:
            await asyncio.sleep(60)
    return Double(2 * question.number, b"\x00\xff")


async def test_requests_are_answered_by_the_conventions_of_nats_services(city) -> None:
    async with city(names=("cloud",)) as c:
        here, there = [await open_connection([c.url("cloud")], name=name) for name in ("here", "there")]
        server = Server(
            there,
            [
                Endpoint("double", "api.test.double", Question, answer),
                Endpoint("packed", "api.test.packed", Question, answer, encoding="msgpack"),
            ],
            "nearcast-test",
        )
        await server.start()
        await there.flush()
        try:
            assert await call(here, "api.test.double", Question(21), Double) == Double(42, b"\x00\xff")
            packed = await call(here, "api.test.packed", Question(4), Double, encoding="msgpack")
            assert packed == Double(8, b"\x00\xff")
            # A slow answer does not hold up the next one.
            slow = asyncio.create_task(call(here, "api.test.double", Question(3), Double, timeout=1.0))
            await call(here, "api.test.double", Question(5), Double)
            with pytest.raises(NoAnswerError, match=r"api\.test\.double: no answer within 1 s") as silent:
                await slow
            assert not silent.value.nobody_listens
            with pytest.raises(InputError, match="zero has no double worth speaking of"):
                await call(here, "api.test.double", Question(0), Double)
            with pytest.raises(StaleTermError, match="term 7 leads") as stale:
                await call(here, "api.test.double", Question(1), Double)
            assert stale.value.term == 7
            with pytest.raises(RemoteError, match="a mistake of the handler"):
                await call(here, "api.test.double", Question(2), Double)
            with pytest.raises(InputError, match="Expected `int`, got `str`"):
                await call(here, "api.test.double", {"number": "many"}, Double)
            with pytest.raises(InputError, match="required field `number`"):
                await call(here, "api.test.double", None, Double)
            with pytest.raises(RemoteError, match="the answer is unreadable"):
                await call(here, "api.test.double", Question(5), int)
            with pytest.raises(InputError, match="the request cannot be sent"):
                await call(here, "api.test.double", object(), Double)
            with pytest.raises(NoAnswerError, match="nobody listens there") as nobody:
                await call(here, "api.test.nothing", Question(5), Double)
            assert nobody.value.nobody_listens
            # What `nats micro ls` and `nats micro info` ask.
            info = json.loads((await here.request("$SRV.INFO.nearcast-test")).data)
            assert {(e["name"], e["subject"]) for e in info["endpoints"]} == {
                ("double", "api.test.double"),
                ("packed", "api.test.packed"),
            }
            # A request without a reply subject is not answered, and the connection lives.
            here.send("api.test.double", b"", b'{"number": 9}')
            here.send("api.test.double", b"", b"\xff{")
            assert (await call(here, "api.test.double", Question(6), Double)).number == 12
            assert there.is_connected
            assert there.stats["reconnects"] == 0
        finally:
            await server.stop()
            with pytest.raises((NoAnswerError, NatsTimeoutError)):
                await call(here, "api.test.double", Question(5), Double, timeout=0.5)
            await here.close()
            await there.close()


async def test_a_bucket_is_changed_by_compare_and_set_through_any_broker(city) -> None:
    async with city(names=("tokyo", "cloud")) as c:
        connection = await open_connection([c.url("tokyo")], name="test")  # the bucket is in another domain
        try:
            bucket = Bucket(connection, "cloud", "test")
            assert not await bucket.exists()
            with pytest.raises(BucketNotFoundError, match="site cloud has no bucket test"):
                await bucket.read_all()
            with pytest.raises(BucketNotFoundError):
                await bucket.get("a")
            await bucket.create()
            await bucket.create()  # twice is once
            assert await bucket.read_all() == {}
            assert await bucket.get("a") is None
            first = await bucket.put("a", b"1", expected=0)
            with pytest.raises(ConflictError, match="a of bucket test was changed by another writer"):
                await bucket.put("a", b"2", expected=0)
            second = await bucket.put("a", b"2", expected=first)
            found = await bucket.get("a")
            assert found is not None
            assert (found.payload, found.sequence) == (b"2", second)
            await bucket.put("b.c", b"3")
            await bucket.remove("a")  # a marker is left for those who follow
            assert await bucket.get("a") is None
            assert set(await bucket.read_all()) == {"b.c"}
            third = await bucket.put("a", b"4")
            await bucket.erase("a", third - 1)  # written since: it stays
            assert set(await bucket.read_all()) == {"a", "b.c"}
            await bucket.erase("a", third)
            assert set(await bucket.read_all()) == {"b.c"}
        finally:
            await connection.close()


async def test_a_bucket_of_an_earlier_version_is_taken_over_with_all_its_keys(city) -> None:
    async with city(names=("cloud",)) as c:
        connection = await open_connection([c.url("cloud")], name="test")
        try:
            old = await connection.jetstream(domain="cloud").create_key_value(bucket="test", direct=True)
            prefix = subjects.store_api("cloud")
            for n in range(3):
                await connection.request(f"{prefix}.$KV.test.site.s{n}", b"%d" % n, timeout=30)
            bucket = await Bucket(connection, "cloud", "test").create()
            assert {key: one.payload for key, one in (await bucket.read_all()).items()} == {
                "site.s0": b"0", "site.s1": b"1", "site.s2": b"2",
            }  # fmt: skip
            assert (await old.status()).stream_info.config.subjects != ["$KV.test.>"]
            other = await Bucket(connection, "cloud", "test").create()  # once is enough
            await other.put("site.s0", b"9")
            found = await bucket.get("site.s0")
            assert found is not None
            assert found.payload == b"9"
            await connection.jsm(prefix=prefix).delete_stream("KV_test")  # the store has lost it
            await bucket.create()
            assert await bucket.put("site.s0", b"10", expected=0) == 1
        finally:
            await connection.close()


async def test_a_lease_that_is_given_back_is_taken_at_once_and_one_that_is_not_after_a_period(city) -> None:
    async with city(names=("cloud",)) as c:
        connection = await open_connection([c.url("cloud")], name="test")
        try:
            bucket = await Bucket(connection, "cloud", "test").create()
            keepers = [LeaseKeeper(bucket, LeaseMachine(name, 5.0)) for name in ("one", "two", "three")]
            clock = asyncio.get_running_loop().time
            one, two, three = keepers
            await one.step()
            assert one.machine.leads(clock())
            await two.step()
            assert not two.machine.leads(clock())
            await one.release()
            assert not one.machine.leads(clock())
            await two.step()  # at once: nobody holds it
            assert two.machine.leads(clock())
            assert two.machine.term == 2
            changes: list[bool] = []
            keeping = asyncio.create_task(three.keep(changes.append))  # the second one is silent from now on
            await until(lambda: changes == [True], limit=60)
            assert three.machine.term == 3
            await two.step()
            assert not two.machine.leads(clock())
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        finally:
            await connection.close()


async def test_a_cancellation_that_comes_with_the_answer_is_not_lost(city) -> None:
    """A worker of a killed site hung for good: the loop that marks was cancelled just as the broker confirmed."""

    async def answer_empty(message: Msg) -> None:
        await message.respond(b"")

    async with city(names=("cloud",)) as c:
        connection = await open_connection([c.url("cloud")], name="test")
        try:
            await connection.subscribe("api.test.empty", cb=answer_empty)
            await connection.request("api.test.empty", b"", timeout=60)
            for work, answers in (
                (connection.flush(timeout=60), connection._pongs),
                (connection.request("api.test.empty", b"", timeout=60), connection._resp_map),
            ):
                task = asyncio.create_task(work)
                await asyncio.sleep(0)  # it waits for the answer, which nobody could read yet
                (answer,) = answers.values() if isinstance(answers, dict) else answers[-1:]
                answer.add_done_callback(lambda _, task=task: task.cancel())  # behind those who wait for it
                await asyncio.wait([task])
                assert task.cancelled()
        finally:
            await connection.close()


async def test_a_coordinator_that_begins_to_lead_while_it_is_asked_answers(city, monkeypatch) -> None:
    monkeypatch.setattr("nearcast.nats.coordinator_rpc._UNTIL_KNOWN", 30.0)  # the machine may be busy
    async with city(names=("cloud",)) as c:
        here, there = [await open_connection([c.url("cloud")], name=name) for name in ("here", "there")]
        server = Server(there, [Endpoint("double", subjects.coordinator("test", "double"), Question, answer)])
        try:
            asked = asyncio.create_task(call_coordinator(here, "test", "double", Question(21), Double))
            await asyncio.sleep(0.2)
            await server.start()
            assert (await asked).number == 42
            await server.stop()
            await there.flush()
            monkeypatch.undo()
            with pytest.raises(CoordinatorError, match="no coordinator answers; start one"):
                await call_coordinator(here, "test", "double", Question(21), Double)
        finally:
            await here.close()
            await there.close()
