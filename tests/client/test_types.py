"""What type checkers see of typed payloads. mypy checks this file; running it checks nothing more."""

from __future__ import annotations

from typing import Any, assert_type

import msgspec

import nearcast
from nearcast.sync import SyncClient, SyncSubscription


class Reading(msgspec.Struct):
    celsius: float


async def typed(client: nearcast.Client) -> None:
    subscription = client.subscribe("readings", type=Reading)
    assert_type(subscription, nearcast.Subscription[Reading])
    message = await anext(subscription)
    assert_type(message, nearcast.Message[Reading])
    assert_type(message.data, Reading)
    assert_type(message.data.celsius, float)


async def untyped(client: nearcast.Client) -> None:
    message: nearcast.Message = await anext(client.subscribe("readings"))
    assert_type(message.data, Any)
    assert_type((await anext(client.subscribe_channel("alerts", kind="fire"))).data, Any)


def synchronous(client: SyncClient) -> None:
    subscription = client.subscribe("readings", type=Reading)
    assert_type(subscription, SyncSubscription[Reading])
    assert_type([message.data.celsius for message in subscription], list[float])


def test_public_names_can_be_loaded() -> None:
    for name in nearcast.__all__:
        assert getattr(nearcast, name) is not None
