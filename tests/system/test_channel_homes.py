"""Channel subscriptions of clients with a coordinator: it knows them, and they go along when a client moves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from tests.system.control import coordinator

import nearcast
from nearcast.domain.channel import ChannelSpec, Parameter, subscription_key
from nearcast.nats import subjects
from nearcast.nats.catalog import CONFIRMED, SUBSCRIPTIONS, Catalog
from nearcast.nats.stamp import header_block
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import until


@contextlib.asynccontextmanager
async def confirming(catalog: Catalog) -> AsyncIterator[None]:
    """What the data cluster does for subscriptions when it has them in its tables."""
    follower = catalog.follow(SUBSCRIPTIONS)

    async def confirm() -> None:
        while True:
            if any(key != CONFIRMED for key, _ in await follower.changes()):
                await catalog.confirm(follower.revision)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(confirm())
    try:
        yield
    finally:
        await cancel_and_wait(task)


async def test_a_client_that_moves_misses_no_result_and_the_coordinator_lists_its_subscriptions(city):
    async with city(report_seconds=0.2) as c, coordinator(c) as control:
        registry = Catalog(control.connection, "cloud")
        await registry.prepare()
        await registry.add_channel(ChannelSpec("alerts", "SELECT 1", (Parameter("kind", "string"),)))
        fire, flood = (subscription_key({"kind": kind}) for kind in ("fire", "flood"))
        options = {"coordinator": c.url("cloud"), "report_seconds": 0.2}
        async with (
            confirming(registry),
            nearcast.connect(name="phone", **options) as phone,
            nearcast.connect(name="radio", **options) as radio,
        ):
            got: list[str] = []
            await phone.subscribe(channel="alerts", params={"kind": "fire"}, callback=lambda m: got.append(m.id))
            await radio.subscribe(channel="alerts", params={"kind": "fire"}, callback=lambda m: None)
            await radio.subscribe(channel="alerts", params={"kind": "flood"}, callback=lambda m: None)
            sent: list[str] = []

            async def results():
                while True:
                    identity = f"alerts:cloud:{time.time_ns() // 1000}:{len(sent)}"
                    sent.append(identity)
                    control.connection.send(
                        subjects.channel_results("alerts", fire), header_block(identity.encode()), b"{}"
                    )
                    await asyncio.sleep(0.005)

            async def listed():
                rows = await control.ask("channel", "subscriptions")
                return {(row["key"], row["clients"]) for row in rows} == {(fire, 2), (flood, 1)}

            await until(listed)
            assert (await control.ask("client", "info", name="phone"))["channels"] == [f"alerts.{fire}"]
            assert (await control.ask("client", "info", name="phone"))["subscribes"] == []
            await c.interest_settled()
            publishing = asyncio.create_task(results())
            for target in ("tokyo", "osaka", "cloud", "tokyo"):
                if phone.home != target:
                    assert (await control.ask("client", "move", name="phone", to=[target]))["error"] == ""
                    await until(lambda: not phone.coordination.rehoming.moving)
            await cancel_and_wait(publishing)
            await until(lambda: len(set(got)) >= len(sent))
            counts = Counter(got)
            assert [identity for identity in sent if counts[identity] != 1] == []
            assert len(sent) > 100
            assert f"alerts.{fire}" in await registry.held_by("tokyo")  # the data cluster goes on working for it

            async def rated():
                reports = control.leader.monitor.reports
                return any(row.topic == "channel alerts" for row in reports["tokyo"].topics)

            await until(rated)
        await until(lambda: not control.leader.registry.clients)
        assert await control.ask("channel", "subscriptions") == []


async def test_subscribe_channel_takes_the_parameters_as_keywords_and_leaves_when_closed(city, monkeypatch):
    monkeypatch.setattr("nearcast.site.agent.channel_subscriptions._EXPIRE_AFTER", 3600.0)
    async with city(names=("cloud",)) as c, nearcast.connect(c.url("cloud"), name="phone") as phone:
        registry = Catalog(phone.connection, "cloud")
        await registry.prepare()
        await registry.add_channel(ChannelSpec("alerts", "SELECT 1", (Parameter("type", "string"),)))
        key = subscription_key({"type": "fire"})
        async with confirming(registry), phone.subscribe_channel("alerts", type="fire") as alerts:
            subject = subjects.channel_results("alerts", key)
            phone.connection.send(subject, header_block(b"alerts:cloud:1:1"), b'{"severity": 4}')
            assert (await anext(alerts)).data == {"severity": 4}
            assert await registry.held_by("cloud") == [f"alerts.{key}"]

        async def left():
            return not await registry.held_by("cloud")

        await until(left)  # told, not forgotten
        with pytest.raises(nearcast.InputError, match="there is no channel 'alarms'"):
            await phone.subscribe_channel("alarms")
        with pytest.raises(nearcast.InputError, match="takes a topic or a channel"):
            phone.subscribe("alerts", channel="alerts")
