"""A subscription's own tasks and callbacks, without a network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.client.delivered_ids import DeliveredIds
from nearcast.client.gap_filling import DurablePart, GapFiller
from nearcast.client.subscription import Subscription
from nearcast.codec import JSON
from nearcast.errors import InputError
from nearcast.nats.stamp import header_block, late_block


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


async def test_what_comes_behind_newer_ones_of_its_source_is_late() -> None:
    """A link between sites that had been cut gave what it had after newer ones came by the next (chaos, seed 13)."""
    subscription = await Subscription("log", nothing, JSON.decode, None, 100, "drop_oldest")
    subscription.track_deliveries(DeliveredIds(), subscription.take_log)

    def take(source: str, number: int, block: Callable[[bytes], bytes] = header_block) -> bool:
        message_id = f"{source}:tokyo:{1_700_000_000_000_000 + number}:{number}".encode()
        subscription.take("pub.log", "", b"{}", block(message_id))
        return subscription._messages.pop().late

    assert [take("car~a", n) for n in (1, 5, 6, 2, 3, 7)] == [False, False, False, True, True, False]
    assert not take("bus~b", 4), "sources are apart"
    assert take("bus~b", 3, lambda message_id: late_block(message_id, 2)), "what says so already does"
    subscription.take("pub.log", "", b"{}", b"")
    assert not subscription._messages.pop().late, "without an id nothing is known"
    await subscription.close()


async def test_what_is_logged_for_the_gaps_takes_a_limited_space_while_they_are_filled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay whose reader pauses: nobody looks at what comes live meanwhile."""
    monkeypatch.setattr("nearcast.client.gap_filling._STEP", 0.0)
    monkeypatch.setattr("nearcast.client.subscription._LONGEST_LOG", 10)
    connection: Any = SimpleNamespace(is_connected=True)
    sessions: Any = SimpleNamespace(connection=lambda: connection, on_disconnect=[], on_reconnect=[])

    async def look_up() -> list[DurablePart]:
        return []

    subscription = await Subscription("log", nothing, JSON.decode, None, 100, "drop_oldest")
    filler = GapFiller(subscription, sessions, look_up, random.Random(1))
    subscription.track_deliveries(filler.delivered, filler.note_log)
    subscription.start_replay(asyncio.sleep(3600))
    await filler.start([DurablePart("log", "log", ("a",), results=True)])
    await asyncio.sleep(0.05)  # it waits for the replay
    for number in range(1, 1000):
        subscription.take("pub.log", "", b"{}", header_block(b"car~a:tokyo:%d:%d" % (1_700_000_000_000_000, number)))
    assert len(subscription.take_log()) <= 10
    await subscription.close()


async def test_topics_without_ids_are_remembered_in_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a family, whoever may publish makes as many topics as it likes."""
    monkeypatch.setattr("nearcast.client.gap_filling._CONTENTS", 10)
    sessions: Any = SimpleNamespace()

    async def look_up() -> list[DurablePart]:
        return []

    subscription = await Subscription("gps.*", nothing, JSON.decode, None, 2000, "drop_oldest")
    filler = GapFiller(subscription, sessions, look_up, random.Random(1))
    subscription.track_deliveries(filler.delivered, filler.note_log)
    for number in range(1000):
        subscription.take(f"pub.gps.{number}", "", b"{}", b"")
    filler.note_log()
    assert len(filler._unstamped) <= 10
    await subscription.close()


async def test_closing_ends_all_that_belongs_to_it_though_a_part_fails() -> None:
    subscription = await Subscription("log", nothing, JSON.decode, None, 10, "drop_oldest")
    ended, unsubscribed = asyncio.Event(), []

    async def background() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    class Broker:
        async def subscribe_raw(self, subject: str, handler: object) -> str:
            return subject

        async def unsubscribe_raw(self, subject: str) -> None:
            unsubscribed.append(subject)

    def fail() -> None:
        raise OSError("No space left on device")

    await subscription.attach(Broker(), "pub.log")  # type: ignore[arg-type]
    subscription.spawn(background(), "work of")
    await asyncio.sleep(0)
    subscription.on_close(fail)
    with pytest.raises(OSError, match="No space left"):
        await subscription.close()
    assert ended.is_set()
    assert unsubscribed == ["pub.log"]
