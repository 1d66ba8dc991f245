"""What anybody on the network may send: it is refused or skipped, reported, and everything goes on."""

from __future__ import annotations

import asyncio
import contextlib
from types import NoneType
from typing import Any

import msgspec
import pytest
from tests.system.control import Control, coordinator
from tests.system.worker_counts import stats_of_workers

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.kv import Bucket
from nearcast.nats.lease import LEASE_KEY
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.nats.tasks import retry
from nearcast.protocol.control import Rehome, StopTopic, TermClaim
from nearcast.protocol.registration import SiteInfo
from nearcast.testing import RunningSites, until

GARBAGE = b"\xff\x00"
PATIENT = {"lease": 4.0, "site_lost_after": 20.0}  # on a busy machine nobody is to lose a lease by itself


@contextlib.asynccontextmanager
async def attacker(c: RunningSites) -> Any:
    connection = await open_connection([c.url("cloud")], name="attacker")
    try:
        yield connection
    finally:
        await connection.close()


async def next_report(control: Control, site: str) -> None:
    seen = control.leader.monitor.reports[site]
    await until(lambda: control.leader.monitor.reports[site] is not seen)


async def test_garbage_in_the_state_is_skipped_and_reported_and_a_lease_that_is_garbage_is_taken_over(city) -> None:
    async with city(names=("cloud",), report_seconds=0.3) as c, attacker(c) as evil:
        bucket = await Bucket(evil, "cloud", subjects.STATE_BUCKET).create()
        odd = msgspec.json.encode(SiteInfo("other", "nats://x:1", "x", 1))
        deep = b"[" * 50_000
        for key, value in {
            "site.a": GARBAGE,
            "site.b": odd,
            "topic.c": deep,
            "client.d": b'{"name": "../d"}',
            "move.e": b"{}",
            "identity": GARBAGE,
        }.items():
            await bucket.put(key, value)
        async with coordinator(c, **PATIENT) as control:
            status = await control.ask("coordinator", "status")
            assert [line.partition(":")[0] for line in status["bad_entries"]] == [
                "client.d", "move.e", "site.a", "site.b", "topic.c",
            ]  # fmt: skip
            assert "belongs under site.other" in status["bad_entries"][3]
            term = control.coordinator.lease.term
            await bucket.put(LEASE_KEY, GARBAGE)
            await until(lambda: control.coordinator.lease.term > term and control.coordinator.leading.is_set())
            await until(lambda: "cloud" in control.leader.monitor.reports)
            assert (await control.ask("coordinator", "status"))["term"] == control.coordinator.lease.term


async def test_a_made_up_term_or_report_deposes_nobody_and_silences_no_site(city) -> None:
    topic = TopicSpec("gps", ("tokyo",))
    async with (
        city(topic, names=("tokyo", "cloud"), report_seconds=0.3) as c,
        coordinator(c, **PATIENT) as control,
        attacker(c) as evil,
    ):
        term = control.coordinator.lease.term
        stop = subjects.site_command("tokyo", "stop")
        with pytest.raises(InputError, match="term"):
            await call(evil, stop, StopTopic(1 << 62, 99, "gps", "worker-0"), NoneType)
        with pytest.raises(NearcastError, match="nobody leads with it"):
            await call(evil, stop, StopTopic(1 << 50, 99, "gps", "worker-0"), NoneType)
        report = control.leader.monitor.reports["tokyo"]
        lie = msgspec.structs.replace(report, term=1 << 50)
        await evil.publish(subjects.report("tokyo"), msgspec.msgpack.encode(lie), reply=evil.new_inbox())
        await evil.publish(subjects.report("cloud"), msgspec.msgpack.encode(lie))  # of another site than it says
        moved = await control.ask("topic", "move", name="gps", to=["cloud"])
        assert moved["outcome"] == "done", moved
        assert control.coordinator.lease.term == term

        reports = subjects.client_reports("tokyo", "x")
        for latency in ({100_000: 1}, {-1: 1}, {3: -5}):
            odd = {"client": "x", "seconds": 1.0, "topics": [["gps", True, True, 1, 1, 1, 1, latency]]}
            await evil.publish(reports, msgspec.msgpack.encode(odd))
        for odd in (
            {"client": "../x", "seconds": 1.0},
            {"client": "x", "seconds": float("nan")},
            {"client": "x", "seconds": 1.0, "coordinate": {"position": [1.0], "height": 1.0}},
            {"client": "x", "seconds": 1.0, "round_trips": {"tokyo": float("inf")}},
        ):
            await evil.publish(reports, msgspec.msgpack.encode(odd))
        await evil.publish(reports, b"\x91" * 100_000)
        await evil.flush()
        await next_report(control, "tokyo")
        await next_report(control, "tokyo")
        assert control.leader.monitor.reports["tokyo"].arrived == []


async def test_requests_without_a_reply_and_replies_that_are_no_text_do_not_end_a_connection(city) -> None:
    async with city(TopicSpec("gps", ("cloud",)), names=("cloud",)) as c, attacker(c) as evil:
        agent = c.sites["cloud"].agent.connection
        assert agent is not None
        dropped = 0

        async def lost() -> None:
            nonlocal dropped
            dropped += 1

        agent._disconnected_cb = lost
        pid = (await stats_of_workers(c.sites["cloud"]))[0].processor_pid
        for subject in sorted({sub.subject for sub in agent._subs.values() if "_INBOX" not in sub.subject}):
            for payload in (b"", GARBAGE, b"{}", b"[" * 5000):
                await evil.publish(subject.replace("*", "x").replace(">", "x"), payload)
            await send_raw(evil, b"PUB %b \xff\xfe 0\r\n\r\n" % subject.replace("*", "x").encode())
        await evil.flush()
        stats = await stats_of_workers(c.sites["cloud"])
        assert stats[0].processor_pid == pid
        assert dropped == 0


async def send_raw(connection: Connection, command: bytes) -> None:
    connection._pending.append(command)
    connection._pending_data_size += len(command)
    await connection.flush()


async def test_a_client_keeps_no_made_up_term_and_follows_the_coordinator_that_leads(city) -> None:
    async with (
        city(names=("tokyo", "cloud"), report_seconds=0.3) as c,
        coordinator(c, **PATIENT) as control,
        attacker(c) as evil,
        nearcast.connect(name="car", coordinator=c.url("cloud"), report_seconds=0.3) as car,
    ):
        command = subjects.client_command("car")

        async def forge(term: int) -> None:
            rehome = Rehome(term, "evil", "nats://127.0.0.1:1")
            await retry(  # its interest may be new to the broker
                lambda: call(evil, command, rehome, NoneType, timeout=60), within=60, on=NoAnswerError
            )

        with pytest.raises(InputError, match="term"):
            await forge(1 << 62)
        with pytest.raises(NearcastError, match="nobody leads with it"):
            await forge(1 << 50)
        other = "tokyo" if car.home == "cloud" else "cloud"
        moved = await control.ask("client", "move", name="car", to=[other])
        assert (moved["error"], car.home) == ("", other)
        # A site that was asked about a term follows it no more than before.
        with pytest.raises(NearcastError, match="nobody leads with it"):
            await call(evil, subjects.term_claim("tokyo"), TermClaim(1 << 50), NoneType, timeout=60)
        assert {site.agent.topic_host.term for site in c.sites.values()} == {control.coordinator.lease.term}


async def test_what_cannot_be_sent_to_a_worker_is_given_up_and_holds_up_nobody(city) -> None:
    """With the reply that a store needs, the line of these is longer than a broker takes: they were tried for ever."""
    topic = TopicSpec("gps.*", ("tokyo",), ("cloud",), 1)
    async with city(topic, names=("tokyo", "cloud")) as c, attacker(c) as evil:
        for n in range(20):
            await send_raw(evil, b'PUB pub.gps.%b%02d 8\r\n{"n": 1}\r\n' % (b"x" * 4050, n))
        catch_up = c.sites["cloud"].agent.client_services.catch_up
        assert catch_up is not None

        def finished() -> bool:
            followed = catch_up._followed.get("gps.*")
            return followed is not None and followed.machine.read_publications >= 20 and not followed.machine.waiting

        await until(finished, 90)
        async with nearcast.connect(c.url("tokyo"), name="car") as car, car.subscribe("gps.car") as notified:
            await car.publish("gps.car", {"n": 1})
            assert (await asyncio.wait_for(anext(notified), 30)).data
