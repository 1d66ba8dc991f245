"""Which stores are asked about a topic, and in which order. No network."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.client import store_finder
from nearcast.client.store_finder import StoreFinder
from nearcast.nats.rpc import NoAnswerError
from nearcast.protocol.services import StoresAnswer


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Stores that advertise a topic, and how many pings each leaves without an answer; -1: it has no agent."""
    pings: dict[str, int] = {}

    async def call(connection: object, subject: str, *_: object, **__: object) -> StoresAnswer | None:
        site = subject.split(".")[2]
        if subject.endswith(".find"):
            return StoresAnswer(list(pings), True)
        if pings[site]:
            pings[site] -= pings[site] > 0
            raise NoAnswerError("no answer", nobody_listens=pings[site] < 0)
        return None

    monkeypatch.setattr(store_finder, "call", call)
    return pings


async def find() -> list[str]:
    connection: Any = SimpleNamespace(server_name="home")
    return await StoreFinder(lambda: connection, random.Random(1)).find("gps")


async def test_one_that_does_not_answer_is_left_out(silent: dict[str, int]) -> None:
    silent.update(near=0, busy=1, gone=-1)
    assert await find() == ["near"]


async def test_when_all_are_too_busy_for_a_ping_they_are_asked_again(silent: dict[str, int]) -> None:
    silent.update(busy=3, gone=-1)
    assert await find() == ["busy"]


async def test_those_without_agents_are_not_waited_for(silent: dict[str, int]) -> None:
    silent.update(gone=-1)
    assert await find() == []
