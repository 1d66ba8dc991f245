"""Connections that are closed while their broker is gone, on real servers."""

from __future__ import annotations

from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import given_credentials
from nearcast.testing import sites, until


async def test_an_encrypted_connection_whose_broker_is_gone_closes_with_messages_pending() -> None:
    async with sites(names=("cloud",), secured=True) as c:
        assert c.auth is not None
        credentials = given_credentials(c.auth.add_user("service", "here"))
        connection = await open_connection([c.url("cloud")], name="here", credentials=credentials)
        subscription = await connection.subscribe_raw("ntf.news", lambda *_: None)
        await c.sites["cloud"].broker.stop()
        await until(lambda: not connection.is_connected, 60)
        connection.send("pub.news", b"", b"never sent")
        await connection.unsubscribe_raw(subscription)
        await connection.close()
        await connection.unsubscribe_raw(subscription)
