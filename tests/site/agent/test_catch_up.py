"""Catch-up of a store's topics, without a network: what one topic does to the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.streams import StreamBounds
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.agent.catch_up import CatchUp
from nearcast.testing import until

TOPICS = [TopicSpec(name, ("a",), ("a",), 1) for name in ("odd", "sound")]


async def test_an_odd_message_of_one_topic_does_not_keep_the_others_from_being_processed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nearcast.site.agent.catch_up._PERIOD", 0.01)
    connection: Any = SimpleNamespace(new_inbox=lambda: "_INBOX.x", jsm=lambda **_: None, jetstream=lambda **_: None)
    catch_up: Any = CatchUp("a", connection, connection, lambda: TOPICS)
    bounds = {subjects.stream_name(topic.name): StreamBounds(1, 9) for topic in TOPICS}
    advanced: list[str] = []

    async def all_bounds() -> dict[str, StreamBounds]:
        return bounds

    async def advance(spec: TopicSpec, stream: str, found: StreamBounds) -> None:
        if spec.name == "odd":
            raise KeyError("an odd message")
        advanced.append(spec.name)

    async def create() -> bool:
        return True

    catch_up._reader = SimpleNamespace(all_bounds=all_bounds)
    catch_up._bucket = SimpleNamespace(create=create)
    catch_up._advance = advance
    passing = asyncio.create_task(catch_up._run())
    try:
        await until(lambda: len(advanced) > 2, limit=10)
    finally:
        await cancel_and_wait(passing)
