"""Limits that brokers enforce: who is over one is told, keeps its connection, and nobody else notices."""

from __future__ import annotations

import contextlib

import pytest
from tests.system.secured.conftest import Secured

import nearcast
from nearcast.auth.push import push_accounts
from nearcast.auth.roles import Grants
from nearcast.nats import subjects
from nearcast.nats.identity.tokens import AccessLimits
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]


async def test_a_payload_above_the_limit_of_its_user_is_an_error_and_nothing_else(secured: Secured) -> None:
    """The broker closed the connection, and the client library never opened another one."""
    limits = AccessLimits(payload=2000)
    file = secured.auth.add_user("device", "small", grants=Grants(("gps.small",), ("gps.small",)), limits=limits)
    async with nearcast.connect(secured.running.url("edge"), credentials=file) as client:
        with pytest.raises(nearcast.PayloadTooLargeError, match="the broker takes at most 2000"):
            await client.publish("gps.small", "x" * 2000)
        async with client.subscribe("gps.small") as warnings:
            receipt = await client.publish("gps.small", {"n": "x" * 1900})
            assert sorted(receipt.stores) == ["cloud", "edge"]
            assert (await anext(warnings)).data == {"n": "x" * 1900}
        assert client.connection.stats["reconnects"] == 0
        async with secured.connected("small") as raw:  # who does not keep to it is cut off by the broker
            raw._max_payload = 1 << 20
            raw.send(subjects.publications("gps.small"), b"", b"x" * 10_000)
            await until(lambda: raw.stats["reconnects"] == 1, 60)
            assert raw.max_payload < 10_000, "it has learnt"
        assert (await client.publish("gps.small", {"n": 1})).stores


async def test_a_payload_above_the_limit_of_the_tenant_costs_one_reconnection(secured: Secured) -> None:
    """No token of a user says it. What was not acknowledged is sent again, and must not be cut off again and again."""
    file, url = secured.auth.credentials_file("car7", "main"), secured.running.url("edge")
    secured.auth.add_tenant("main", AccessLimits(payload=600_000))
    await push_accounts(secured.auth, url)
    try:
        async with nearcast.connect(url, credentials=file) as client:

            async def is_cut_off() -> bool:
                with contextlib.suppress(nearcast.QuorumError):
                    await client.publish("gps.car7", {"n": "x" * 900_000}, timeout=2)
                return client.connection.stats["reconnects"] > 0

            await until(is_cut_off, 60)
            reconnects = client.connection.stats["reconnects"]
            with pytest.raises(nearcast.PayloadTooLargeError):
                await client.publish("gps.car7", {"n": "x" * 900_000})
            receipt = await client.publish("gps.car7", {"n": "x" * 400_000}, timeout=60)
            assert sorted(receipt.stores) == ["cloud", "edge"]
            assert client.connection.stats["reconnects"] == reconnects == 1
        await secured.reported()
    finally:
        secured.auth.add_tenant("main")
        await push_accounts(secured.auth, url)


async def test_a_subscription_above_the_limit_is_refused_and_the_others_go_on(secured: Secured) -> None:
    """The client library closed the connection for good, with all other subscriptions."""
    file = secured.auth.add_user("service", "few", limits=AccessLimits(subscriptions=12))
    async with (
        nearcast.connect(secured.running.url("edge"), credentials=file) as client,
        contextlib.AsyncExitStack() as opened,
    ):
        made: list[nearcast.Subscription[object]] = []

        async def subscribe_all() -> None:
            for n in range(12):
                made.append(await opened.enter_async_context(client.subscribe(f"gps.{n}")))  # noqa: PERF401

        with pytest.raises(nearcast.RefusedError, match="few has as many subscriptions as it may have"):
            await subscribe_all()
        assert 2 < len(made) < 12
        await client.publish("gps.0", {"n": 1})
        assert (await anext(made[0])).data == {"n": 1}
        await made[1].close()
        async with client.subscribe("gps.20") as again:
            await client.publish("gps.20", {"n": 2})
            assert (await anext(again)).data == {"n": 2}
