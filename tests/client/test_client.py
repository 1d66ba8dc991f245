"""What a client says at once instead of waiting for an answer that cannot come. No network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.client.client import Client
from nearcast.client.owner_process import OwnerProcess
from nearcast.client.publishing import Publisher
from nearcast.client.quota import PublishQuota, QuotaError
from nearcast.client.topic_lookup import look_up
from nearcast.codec import JSON
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.identity.tokens import UNLIMITED


class Unreachable:
    """The connection of a client whose site closes all that it opens; nobody may be asked through it."""

    server_name = "edge"
    is_closed = False

    async def request(self, *_: object, **__: object) -> None:
        raise AssertionError("it cannot be answered")

    subscribe_raw = flush = request


@pytest.fixture
async def suspended() -> Client:
    connection = Unreachable()
    sessions: Any = SimpleNamespace(name="car", connection=lambda: connection, current=None)
    publisher = Publisher(sessions, JSON)
    publisher.quota = PublishQuota("car", UNLIMITED)
    publisher.quota.suspend("site edge: car sent more than 50 messages/s", 10)
    return Client(sessions, publisher, set(), JSON, None)


@pytest.mark.parametrize(
    "operation",
    [
        lambda client: client.publish("gps", {}),
        lambda client: client.feed("trips", {}),
        lambda client: client.subscribe("gps"),
        lambda client: client.subscribe(channel="near", params={}),
        lambda client: client.dead_letters("gps"),
        lambda client: client.topics("gps"),
        lambda client: anext(aiter(client.history("gps"))),
        lambda client: client.flush(),
    ],
)
async def test_a_suspended_client_is_told_at_once(suspended: Client, operation: Any) -> None:
    with pytest.raises(QuotaError, match="site edge: car sent more than 50 messages/s"):
        await operation(suspended)


async def test_a_client_that_is_suspended_while_it_asks_does_not_ask_again(suspended: Client) -> None:
    quota, connection = suspended._publisher.quota, suspended._publisher._sessions.connection()
    assert quota is not None
    quota.suspend("", 0)  # the one before is over

    async def close(*_: object, **__: object) -> None:
        quota.suspend("site edge: car sent more than 50 messages/s", 10)
        raise TimeoutError

    connection.request, connection.credentials = close, None  # type: ignore[method-assign, assignment]
    with pytest.raises(QuotaError, match="50 messages/s"):
        await suspended.publish("gps", {})


async def test_nobody_is_asked_about_a_topic_through_a_connection_that_was_closed() -> None:
    connection: Any = Unreachable()
    connection.is_closed = True
    with pytest.raises(ConnectionLostError, match="topic gps: the connection is closed"):
        await look_up(lambda: connection, "gps")


async def test_a_client_closes_its_connection_though_a_subscription_fails_to_close() -> None:
    closed = []

    async def close_sessions() -> None:
        closed.append("sessions")

    async def fail() -> None:
        raise OSError("No space left on device")

    sessions: Any = SimpleNamespace(name="car", owner=OwnerProcess("car"), close=close_sessions)
    subscription: Any = SimpleNamespace(close=fail)
    client = Client(sessions, Publisher(sessions, JSON), [subscription], JSON, None)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space left"):
        await client.__aexit__(None, None, None)
    assert closed == ["sessions"]
