"""How subscriptions begin, while the client moves. No network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.client.channels import ChannelMember, HeldChannels
from nearcast.client.subscribing import begin_channel
from nearcast.client.subscription import Subscription
from nearcast.codec import JSON
from nearcast.errors import NearcastError
from nearcast.protocol.services import ChannelAnswer, ConfirmAnswer


class AttachedError(Exception):
    """The subscription was attached to a connection: it has begun."""


class Home(ChannelMember):
    """A site's agent. moves: called before it would answer whether the data cluster has the subscription."""

    def __init__(self, held: HeldChannels, moves: Any = None) -> None:
        super().__init__("car", SimpleNamespace(is_connected=False), held)  # type: ignore[arg-type]
        self._moves = moves

    async def _ask(self, verb: str, request: Any, kind: Any) -> Any:
        if verb == "subscribe":
            return ChannelAnswer("k", "cloud", 7)
        if self._moves is not None:
            self._moves()
            raise NearcastError("the agent of site old does not answer about channels")
        return ConfirmAnswer(True)


async def test_a_client_that_moves_while_the_data_cluster_takes_its_subscription_asks_its_new_home() -> None:
    held: HeldChannels = {}

    def connection() -> None:
        raise AttachedError

    sessions: Any = SimpleNamespace(connection=connection, on_disconnect=[], on_reconnect=[])

    def move() -> None:
        sessions.current = SimpleNamespace(channels=Home(held))

    sessions.current = SimpleNamespace(channels=Home(held, move))

    async def begin(subscription: Subscription) -> None:
        await begin_channel(subscription, sessions, "near", {}, None, None, None)  # type: ignore[arg-type]

    subscription = Subscription("near", begin, JSON.decode, None, 10, "drop_oldest")
    with pytest.raises(AttachedError):
        await subscription
    assert not held, "who could not begin leaves"
    await sessions.current.channels.close()
