"""Replay from stores that lack something at first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from nearcast.client import replay
from nearcast.client.replay_merge import ReplayMerge
from nearcast.protocol.services import HistoryPage, StoredMessage


class Stores:
    """Rounds of pages: the numbers of each, and whether the store lacked something."""

    def __init__(self, *rounds: tuple[list[int], bool]) -> None:
        self._rounds = list(rounds)
        self.incomplete = False

    async def pages(self) -> AsyncGenerator[HistoryPage, None]:
        numbers, incomplete = self._rounds.pop(0) if len(self._rounds) > 1 else self._rounds[0]
        self.incomplete |= incomplete
        messages = [StoredMessage("log", b"car~a:tokyo:%d:%d" % (n, n), b"", n) for n in numbers]
        yield HistoryPage(messages, incomplete=incomplete)

    def restart(self) -> None:
        self.incomplete = False


class Subscription:
    topic, decode = "log", None

    def __init__(self) -> None:
        self.got: list[int] = []

    async def put_when_there_is_room(self, message: Any) -> None:
        self.got.append(int(message.id.rpartition(":")[2]))


async def test_a_replay_goes_on_until_a_store_has_all_of_it(monkeypatch) -> None:
    """It ended with what a store had that had just come back, and the rest never came."""
    monkeypatch.setattr(replay, "_FIRST_PAUSE", 0.0)
    subscription: Any = Subscription()
    stores: Any = Stores(([0, 1], True), ([0, 1, 3], True), ([0, 1, 2, 3], False))
    await replay._read_all(subscription, stores, ReplayMerge(10))
    assert subscription.got == [0, 1, 3, 2]


async def test_a_replay_without_a_complete_store_ends(monkeypatch) -> None:
    monkeypatch.setattr(replay, "_INCOMPLETE_LIMIT", -1.0)
    subscription: Any = Subscription()
    stores: Any = Stores(([0, 1], True))
    await replay._read_all(subscription, stores, ReplayMerge(10))
    assert subscription.got == [0, 1]
