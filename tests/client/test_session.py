"""The sessions of a client: which one is current, and that each is closed. No network."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.client.session import Session, Sessions
from nearcast.errors import NearcastError
from nearcast.nats.refusals import RefusedSubjects


class FakeConnection:
    """A connection to a broker of that name which takes its time to close."""

    max_payload, is_connected = 1 << 20, False

    def __init__(self, server_name: str) -> None:
        self.server_name, self.refusals = server_name, RefusedSubjects("car")
        self.closed = 0
        self.may_close = asyncio.Event()

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def subscribe_raw(self, subject: str, handler: object) -> None:
        pass

    async def close(self) -> None:
        await self.may_close.wait()
        self.closed += 1


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeConnection]:
    """The connections that were opened, by address."""
    opened: dict[str, FakeConnection] = {}

    async def open_connection(urls: list[str], **options: object) -> FakeConnection:
        return opened.setdefault(urls[0], FakeConnection(urls[0]))

    monkeypatch.setattr("nearcast.client.session.open_connection", open_connection)
    return opened


async def moved(sessions: Sessions) -> tuple[Session, Session]:
    """Sessions at tokyo and, after a switch, at osaka."""
    await sessions.start()
    old, new = sessions.current, await sessions.open(["osaka"])
    sessions.switch(new)
    return old, new


async def test_a_switch_changes_home_and_keeps_the_source(brokers: dict[str, FakeConnection]) -> None:
    sessions = Sessions("car", ["tokyo"], 5.0)
    with pytest.raises(NearcastError, match="not connected"):
        _ = sessions.current
    assert sessions.home == ""
    await sessions.start()
    first = sessions.current.make_id(1).split(":")
    sessions.switch(await sessions.open(["osaka"]))
    second = sessions.current.make_id(2).split(":")
    assert (first[0], first[1], first[3]) == (sessions.source, "tokyo", "1")
    assert (second[0], second[1], second[3]) == (sessions.source, "osaka", "2")
    assert sessions.home == "osaka"
    for connection in brokers.values():
        connection.may_close.set()
    await sessions.close()
    assert [connection.closed for connection in brokers.values()] == [1, 1]


async def test_microseconds_of_a_source_never_repeat(
    brokers: dict[str, FakeConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still and goes back a little; ids of a family of topics stay apart, in order."""
    sessions = Sessions("car", ["tokyo"], 5.0)
    await sessions.start()
    times = iter([10, 10, 9, 10, 50])
    monkeypatch.setattr("nearcast.client.session.time.time_ns", lambda: next(times) * 1_000_000)
    made = [int(sessions.current.make_id(1).split(":")[2]) for _ in range(5)]
    assert made == [10_000, 10_001, 10_002, 10_003, 50_000]
    brokers["tokyo"].may_close.set()
    await sessions.close()


async def test_a_corrected_clock_does_not_wait_for_the_wrong_one(
    brokers: dict[str, FakeConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Sessions("car", ["tokyo"], 5.0)
    await sessions.start()
    monkeypatch.setattr("nearcast.client.session.time.time_ns", lambda: 7_200_000_000_000)
    monkeypatch.setattr("nearcast.client.session.time.clock_gettime_ns", lambda _: 0)
    assert sessions.current.make_id(1).split(":")[2] == "7200000000"
    sessions.clock.correct(-3_600_000_000)
    assert sessions.current.make_id(2).split(":")[2] == "3600000000"
    brokers["tokyo"].may_close.set()
    await sessions.close()


def test_two_processes_of_one_name_are_two_sources() -> None:
    assert Sessions("car", ["tokyo"], 5.0).source != Sessions("car", ["tokyo"], 5.0).source


async def test_a_session_whose_closing_was_cancelled_is_closed_with_the_client(
    brokers: dict[str, FakeConnection],
) -> None:
    sessions = Sessions("car", ["tokyo"], 5.0)
    old, _ = await moved(sessions)
    discarding = asyncio.create_task(sessions.discard(old))
    await asyncio.sleep(0)
    discarding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await discarding
    for connection in brokers.values():
        connection.may_close.set()
    await sessions.close()
    assert brokers["tokyo"].closed == brokers["osaka"].closed == 1
