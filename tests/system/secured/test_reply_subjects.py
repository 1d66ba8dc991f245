"""Brokers do not check the reply that a user writes: nobody may lend its own rights by answering to it."""

from __future__ import annotations

import asyncio

import msgspec
import psutil
import pytest
from tests.system.secured.conftest import GPS, Secured

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.connection import Connection
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.nats.kv import Bucket
from nearcast.nats.replica_stream import holds_topic
from nearcast.nats.rpc import call
from nearcast.protocol.services import TopicsAnswer, TopicsRequest
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]


async def test_no_answer_is_a_command_to_a_store(secured: Secured) -> None:
    """A device removed streams and the coordinators' state: the error was the answer, and the reply the command."""
    client = nearcast.connect(secured.running.url("edge"), credentials=secured.auth.credentials_file("car7", "main"))
    async with secured.connected("admin") as admin, secured.connected("car7") as car, client:
        await client.publish("gps.car7", {"n": 1})
        before = await last_sequences(admin)
        assert (("edge", subjects.stream_name(GPS.name))) in before
        for site, stream in before:
            for request in (
                subjects.topics_lookup(site),
                subjects.history(site, "find"),
                f"{subjects.channels_service(site, 'renew')}.car7",
                subjects.client_request("register", "car7"),
            ):
                for verb in ("DELETE", "PURGE"):
                    car.send(request, b"", b"garbage", f"{subjects.store_api(site)}.STREAM.{verb}.{stream}")
        await car.flush()
        await secured.reported()
        await client.publish("gps.car7", {"n": 2})
        after = await last_sequences(admin)
        assert all(after[key] >= sequence for key, sequence in before.items()), after  # a new one begins at 1
        assert [past.data async for past in client.history("gps.car7", last=2)] == [{"n": 1}, {"n": 2}]
        assert not secured.lost


async def test_no_acknowledgement_is_the_value_of_a_key(secured: Secured) -> None:
    """A device deposed coordinators and spoilt the registry: stores acknowledge to the reply that a publisher wrote."""
    async with secured.connected("admin") as admin, secured.connected("car7") as car, secured.connected("car7") as own:
        term = secured.coordinator.lease.term
        answers: list[bytes] = []
        await own.subscribe_raw("_INBOX.car7.done", lambda subject, reply, payload, headers: answers.append(payload))
        await own.flush()
        for stream, key in (("nearcast", "lease"), ("nearcast", "topic.gps"), ("nearcast", "site.edge")):
            for subject in (f"$KV.{stream}.{key}", f"$KV.{stream}.x.{key}"):
                for prefix in ("", "$JS.API.", "$JS.cloud.API.", "$JS.edge.API."):
                    car.send(subjects.publications("gps.car7"), b"", b'{"n": 1}', f"{prefix}{subject}")
        car.send(subjects.publications("gps.car7"), b"", b'{"n": 1}', "_INBOX.car7.done")
        await until(lambda: len(answers) == 2, 60)  # both stores have acknowledged all of them
        status = await call_coordinator(admin, "coordinator", "status", {}, dict, 60)
        assert status["bad_entries"] == []
        state = await Bucket(admin, "cloud", "nearcast").read_all()
        assert [key for key, entry in state.items() if entry.payload.startswith(b'{"stream"')] == []
        assert secured.coordinator.lease.term == term
        await secured.reported()


async def test_no_store_acknowledges_for_another_topic(secured: Secured) -> None:
    """A receipt came although no store of the topic had it: of somebody else's publication, by the same reply."""
    far = TopicSpec("far", (), ("edge",), 1)
    file = secured.auth.credentials_file("service", "main")
    store = secured.running.sites["edge"].store
    assert store is not None
    assert store.pid is not None
    async with (
        secured.connected("admin") as admin,
        secured.connected("car7") as car,
        nearcast.connect(secured.running.url("cloud"), credentials=file) as client,
    ):
        await call_coordinator(admin, "topic", "add", {"spec": msgspec.to_builtins(far)}, object, 60)
        await until(lambda: known(admin, "far"), 60)
        answers: list[bytes] = []
        await car.subscribe_raw("_INBOX.car7.done", lambda subject, reply, payload, headers: answers.append(payload))
        acknowledgements = client._sessions.current.acknowledgements
        hung = psutil.Process(store.pid)
        hung.suspend()
        try:
            published = asyncio.create_task(client.publish("far", {"n": 1}, timeout=120))
            await until(lambda: bool(acknowledgements._waiting))
            for reply in (
                *(f"{acknowledgements._inbox}.{token}" for token in acknowledgements._waiting),
                "_INBOX.car7.done",
            ):
                car.send(subjects.publications("gps.car7"), b"", b'{"n": 1}', reply)
            await until(lambda: bool(answers), 60)  # the other store has acknowledged both
            await client.flush()
            assert not published.done(), await published
        finally:
            hung.resume()
        assert (await published).stores == ("edge",)


async def test_no_trace_goes_where_its_sender_may_not_publish(secured: Secured) -> None:
    """Brokers publish the trace of a message to the subject that its header names."""
    stream = subjects.stream_name(GPS.name)
    forbidden = (
        subjects.publications("gps.other"),
        "_INBOX.service.x",
        subjects.client_command("other"),
        f"{subjects.store_api('edge')}.STREAM.PURGE.{stream}",
    )
    async with secured.connected("car7") as car:
        for subject in forbidden:
            block = b"NATS/1.0\r\nNats-Trace-Dest: %b\r\n\r\n" % subject.encode()
            car.send(subjects.publications("gps.car7"), block, b'{"n": 1}', "")
        expected = {f"publish {subject}".lower(): 1 for subject in forbidden}
        await until(lambda: len(car.refusals.counts) == len(forbidden), 60)
        assert car.refusals.counts == expected


async def known(admin: Connection, topic: str) -> bool:
    """Whether the agent of the cloud knows a topic, and the store of edge keeps it."""
    found = await call(admin, subjects.topics_lookup("cloud"), TopicsRequest(topic), TopicsAnswer, timeout=60)
    return bool(found.topics) and await holds_topic(admin, "edge", topic)


async def last_sequences(admin: Connection) -> dict[tuple[str, str], int]:
    """Of all streams, by site and name."""
    return {
        (site, str(one.config.name)): one.state.last_seq
        for site in ("edge", "cloud")
        for one in await admin.jsm(prefix=subjects.store_api(site)).streams_info()
    }
