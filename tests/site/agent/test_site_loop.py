"""The site's loop without servers: it reports whatever its measurements run into."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from nearcast.domain.site import SiteSpec
from nearcast.protocol.reports import SiteReport
from nearcast.site.agent.site_loop import SiteLoop
from nearcast.site.site_lease import SiteLeaseMachine


class FakeConnection:
    max_payload = 1 << 20

    def __init__(self) -> None:
        self.reports: list[SiteReport] = []

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def subscribe_raw(self, subject: str, handler: Any) -> None:
        pass

    async def unsubscribe_raw(self, subscription: Any) -> None:
        pass

    def send(self, subject: str, headers: bytes, payload: bytes, reply: str = "") -> None:
        assert subject == "mon.site.west"
        self.reports.append(msgspec.msgpack.decode(payload, type=SiteReport))


class FakeHost:
    revision = 7
    term = 3
    records: tuple[()] = ()


class FakeMeasurement:
    def __init__(self) -> None:
        self.calls = 0

    async def report(self, revision: int, records: object, reported_clients: object) -> SiteReport:
        self.calls += 1
        if self.calls == 1:
            raise IndexError("a client reported a latency that no bucket counts")
        return SiteReport("west", revision)


async def test_a_failed_measurement_does_not_end_the_reports() -> None:
    connection = FakeConnection()
    loop = SiteLoop(SiteSpec("west"), connection, 0.01, [], FakeHost(), FakeMeasurement(), SiteLeaseMachine(0.0))  # type: ignore[arg-type]
    await loop.start()
    async with asyncio.timeout(10):
        while not connection.reports:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await loop.stop()
    assert connection.reports[0] == SiteReport("west", 7, term=3)
