"""Rows of the catalog stay in step with the clients that subscribe and leave. No network."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nearcast.domain.channel import ChannelSpec, Parameter, subscription_key
from nearcast.protocol.services import ChannelRequest, RenewRequest
from nearcast.site.agent import channel_subscriptions
from nearcast.site.agent.channel_subscriptions import ChannelSubscriptions
from nearcast.testing import until

SPEC = ChannelSpec("near", "SELECT * FROM reports r WHERE r.id = :id", (Parameter("id", "bigint"),))


class Broker:
    """The agent's connection to its broker."""

    link, is_connected = ("broker", 1), True


class Catalog:
    """Rows by channel and key. Each removal waits until `removal` is set."""

    def __init__(self, *_: object) -> None:
        self.rows: set[str] = set()
        self.removal = asyncio.Event()
        self.removing = 0
        self.late = False  # a removal is tried again, and takes effect when it has ended

    async def channel(self, name: str) -> ChannelSpec:
        return SPEC

    async def fault(self, channel: str, key: str) -> str:
        return ""

    async def subscribe(self, channel: str, key: str, site: str, values: object) -> int:
        self.rows.add(f"{channel}.{key}")
        return 1

    async def unsubscribe(self, channel: str, key: str, site: str) -> None:
        if not self.late:
            self.rows.discard(f"{channel}.{key}")
        self.removing += 1
        await self.removal.wait()
        if self.late:
            self.rows.discard(f"{channel}.{key}")


@pytest.mark.parametrize("interruption", ["suspended", "without a broker"])
async def test_a_client_that_could_not_be_heard_has_not_left(
    monkeypatch: pytest.MonkeyPatch, interruption: str
) -> None:
    """Without a row no results are computed: an agent that had no processor for a while must not remove one."""
    catalog, broker, now = Catalog(), Broker(), 1000.0
    catalog.removal.set()
    monkeypatch.setattr(channel_subscriptions, "Catalog", lambda *_: catalog)
    subscriptions: Any = ChannelSubscriptions(broker, "a", "cloud")  # type: ignore[arg-type]
    subscriptions._clock = lambda: now
    name = f"near.{subscription_key({'id': 1})}"

    async def pass_time(seconds: int, *, renewing: bool = False) -> None:
        nonlocal now
        for _ in range(seconds):
            now += 1
            if renewing:
                assert (await subscriptions._renew(RenewRequest("car", [name]))).unknown == []
            await subscriptions._expire()

    await subscriptions._subscribe(ChannelRequest("car", "near", {"id": 1}))
    await pass_time(60, renewing=True)
    if interruption == "suspended":
        now += 40
    else:
        monkeypatch.setattr(broker, "is_connected", False)
        await pass_time(40)
        monkeypatch.setattr(broker, "is_connected", True)
        monkeypatch.setattr(broker, "link", ("broker", 2))
    await subscriptions._expire()  # before any of the renewals that wait in the socket is read
    await pass_time(20)
    assert catalog.rows == {name}
    await pass_time(60, renewing=True)
    assert catalog.rows == {name}
    await pass_time(28)
    assert catalog.rows == {name}
    await pass_time(4)
    assert catalog.rows == set(), "it does not renew, and could be heard"


@pytest.mark.parametrize("late", [False, True])
async def test_a_row_is_not_removed_when_a_client_comes_back_meanwhile(
    monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    catalog = Catalog()
    catalog.late = late
    monkeypatch.setattr(channel_subscriptions, "Catalog", lambda *_: catalog)
    monkeypatch.setattr(channel_subscriptions, "_EXPIRE_AFTER", 0.0)
    subscriptions: Any = ChannelSubscriptions(Broker(), "a", "cloud")  # type: ignore[arg-type]
    requests = [ChannelRequest("car", "near", {"id": n}) for n in (1, 2)]
    for request in requests:
        await subscriptions._subscribe(request)
    await asyncio.sleep(0.01)
    expiry = asyncio.create_task(subscriptions._expire())  # neither was renewed
    await until(lambda: catalog.removing == 1)
    for request in requests:
        await subscriptions._subscribe(request)
    catalog.removal.set()
    await expiry
    names = {f"near.{subscription_key({'id': n})}" for n in (1, 2)}
    assert (await subscriptions._renew(RenewRequest("car", sorted(names)))).unknown == []
    assert catalog.rows == names
