"""The repair of a store's topics goes on, whatever happens to a round."""

from __future__ import annotations

import sqlite3
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.domain.topic import TopicSpec
from nearcast.protocol.repair import DigestsRequest
from nearcast.site.agent.repair import Repair
from nearcast.site.agent.repair_machine import Digests
from nearcast.site.agent.replica_contents import ReplicaContents
from nearcast.site.agent.store_index import IndexedMessage, StoreIndex, bucket_of
from nearcast.testing import until

INDEX = SimpleNamespace(floor=0)


class World:
    """A repair whose peers answer what `answers` gives, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = [TopicSpec("gps", replicas=("a", "b"), quorum=1)]
        self.completed: list[str] = []
        self.answers: list[Any] = []
        connection: Any = SimpleNamespace(
            stats={"reconnects": 0}, is_connected=True, new_inbox=lambda: "_INBOX.x", jsm=lambda **_: None
        )
        tail: Any = SimpleNamespace(index=lambda stream: INDEX)
        self.repair = Repair(
            "a", connection, connection, tail, lambda: self.topics, lambda topic: {"b"}, self._complete
        )
        monkeypatch.setattr("nearcast.site.agent.repair.interest_settle", lambda: 0.0)
        monkeypatch.setattr("nearcast.site.agent.repair_machine._SETTLE", 0.0)
        monkeypatch.setattr("nearcast.site.agent.repair_machine.RETRY_PAUSE", 0.0)
        monkeypatch.setattr("nearcast.site.agent.repair._PERIOD", 0.01)
        monkeypatch.setattr(self.repair, "_do", self._do)

    def _complete(self, topic: TopicSpec) -> None:
        self.completed.append(topic.name)

    async def _do(self, topic: str, instruction: object) -> object:
        answer = self.answers.pop(0) if self.answers else Digests([], 0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_an_error_of_the_index_ends_one_round_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.answers = [sqlite3.OperationalError("database or disk is full")]
    await world.repair.start()
    await until(lambda: world.completed == ["gps"])
    await world.repair.stop()


async def test_a_topic_that_comes_back_is_complete_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    only = TopicSpec("gps", replicas=("a",), quorum=1)
    world.topics = [only]
    await world.repair.start()
    await until(lambda: world.completed == ["gps"])
    world.topics = []
    await until(lambda: world.repair.behind("gps"))  # it is not known here any more
    world.topics = [only]
    await until(lambda: world.completed == ["gps", "gps"])
    await world.repair.stop()


async def test_messages_dated_far_ahead_are_not_compared() -> None:
    """Publishers write their times. Stores that had removed one would get it from each other for ever."""
    index, now_us = StoreIndex(None).stream("s"), int(time.time() * 1e6)
    ahead = [0, 3600, 2 * 86_400, 10**9]  # seconds
    index.add([IndexedMessage(n + 1, now_us + 10**6 * at, n) for n, at in enumerate(ahead)], now=0.0)
    tail: Any = SimpleNamespace(index=lambda name: index)
    answer = await ReplicaContents("tokyo", tail).digests(DigestsRequest("log"))
    assert [bucket for bucket, _, _ in answer.digests] == [bucket_of(now_us), bucket_of(now_us + 3600 * 10**6)]
