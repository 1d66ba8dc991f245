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


class Catalog:
    """Rows by channel and key. Each removal waits until `removal` is set."""

    def __init__(self, *_: object) -> None:
        self.rows: set[str] = set()
        self.removal = asyncio.Event()
        self.removing = 0

    async def channel(self, name: str) -> ChannelSpec:
        return SPEC

    async def fault(self, channel: str, key: str) -> str:
        return ""

    async def subscribe(self, channel: str, key: str, site: str, values: object) -> int:
        self.rows.add(f"{channel}.{key}")
        return 1

    async def unsubscribe(self, channel: str, key: str, site: str) -> None:
        self.rows.discard(f"{channel}.{key}")
        self.removing += 1
        await self.removal.wait()


async def test_a_row_is_not_removed_when_a_client_comes_back_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog()
    monkeypatch.setattr(channel_subscriptions, "Catalog", lambda *_: catalog)
    monkeypatch.setattr(channel_subscriptions, "_EXPIRE_AFTER", 0.0)
    subscriptions: Any = ChannelSubscriptions(None, "a", "cloud")  # type: ignore[arg-type]
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
