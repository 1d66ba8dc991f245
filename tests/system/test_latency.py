"""Latency as the coordinator sees it: measured by subscribers, by the home's clock, in parts."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar

import pytest
from tests.system.control import coordinator

import nearcast
from nearcast.client import session
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until

GPS = TopicSpec("gps", ("tokyo",), bound_ms=200.0)
HOUR = 3600 * 10**9


WRONG: ContextVar[bool] = ContextVar("wrong", default=False)


class WrongClock:
    """The module `time`, an hour ahead for the tasks of one client."""

    def __getattr__(self, name):
        return getattr(time, name)

    def time_ns(self) -> int:
        return time.time_ns() + (HOUR if WRONG.get() else 0)


@pytest.mark.parametrize("wrong", [False, True])
async def test_a_client_whose_clock_is_an_hour_off_changes_nothing(city, monkeypatch, wrong) -> None:
    monkeypatch.setattr(session, "time", WrongClock())
    monkeypatch.setattr("nearcast.client.coordination.neighbourhood.time", WrongClock())
    async with city(GPS, report_seconds=0.3) as c, coordinator(c) as control:
        entry = c.url("cloud")

        async def drive() -> None:
            WRONG.set(wrong)
            async with nearcast.connect(coordinator=entry, name="car", report_seconds=0.3) as car:
                while True:
                    await car.publish("gps", {"n": 1})
                    await asyncio.sleep(0.005)

        async with (
            nearcast.connect(coordinator=entry, name="reader", report_seconds=0.3) as reader,
            reader.subscribe("gps") as messages,
        ):
            driving = asyncio.create_task(drive())
            try:
                message = await anext(messages)
                assert message.published is not None
                assert abs(message.published.timestamp() - time.time()) < 60

                async def is_measured() -> bool:
                    figures = (await control.ask("topic", "info", name="gps"))["figures"]
                    return figures["measured_p90_ms"] is not None

                await until(is_measured)
                figures = (await control.ask("topic", "info", name="gps"))["figures"]
                assert 0 < figures["measured_p90_ms"] < 60_000
                parts = figures["way_in_ms"] + figures["in_worker_p90_ms"] + figures["way_out_ms"]
                assert figures["estimate_ms"] == pytest.approx(parts, abs=0.3)
                assert "measured p90" in figures["latency"]
            finally:
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
        status = await control.ask("coordinator", "status")
        assert status["ready"], status["not_ready"]
