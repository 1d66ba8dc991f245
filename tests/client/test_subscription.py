"""A subscription's own tasks and callbacks, without a network."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.client.subscription import Subscription
from nearcast.codec import JSON
from nearcast.errors import InputError


async def nothing(subscription: Subscription) -> None:
    pass


async def test_who_gives_up_waiting_for_the_replay_does_not_end_it() -> None:
    subscription = await Subscription("log", nothing, JSON.decode, None, 10, "drop_oldest")
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def replay() -> None:
        await may_end.wait()
        ended.set()

    subscription.start_replay(replay())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(subscription.replay_done(), 0.01)
    may_end.set()
    await subscription.replay_done()
    assert ended.is_set()
    await subscription.close()


async def test_a_callback_named_like_a_replay_is_not_waited_for() -> None:
    subscription = await Subscription("log", nothing, JSON.decode, lambda message: None, 10, "drop_oldest")
    async with asyncio.timeout(5):
        await subscription.replay_done()
    await subscription.close()


async def test_it_is_closed_once_and_also_when_it_could_not_begin() -> None:
    async def refuse(subscription: Subscription) -> None:
        subscription.on_close(lambda: closed.append(subscription))
        raise InputError("no such topic")

    closed: list[Subscription] = []
    subscription = Subscription("log", refuse, JSON.decode, None, 10, "drop_oldest")
    with pytest.raises(InputError):
        await subscription
    await subscription.close()
    assert closed == [subscription]
