"""The numbers of publications: from 1 for each topic, without gaps, whatever happens to routes. No network."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.client.publishing import Publisher
from nearcast.codec import JSON
from nearcast.errors import InputError, InputTypeError
from nearcast.nats.stamp import parse_stamp, stamp_of
from nearcast.protocol.services import TopicsAnswer


class Broker:
    """Takes what is sent."""

    backlogged = False

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def send(self, subject: str, headers: bytes, payload: bytes) -> None:
        self.sent.append((subject, stamp_of(headers)))


def publisher_at(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Publisher:
    async def look_up(current: object, pattern: str) -> TopicsAnswer:
        await asyncio.sleep(0)
        return TopicsAnswer()

    monkeypatch.setattr("nearcast.client.publishing.look_up", look_up)
    session = SimpleNamespace(
        connection=broker, largest_payload=100, make_id=lambda number: f"car~aaaaa:tokyo:{1000 + number}:{number}"
    )
    return Publisher(SimpleNamespace(current=session, connection=lambda: broker), JSON)  # type: ignore[arg-type]


async def test_what_json_has_no_number_for_is_refused_and_takes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    publisher = publisher_at(broker, monkeypatch)
    route = await publisher.topic_route("gps.x")
    with pytest.raises(InputError, match=r"^topic gps.x: dict cannot be encoded: kmh is nan; JSON has no NaN"):
        publisher.send("gps.x", route, {"kmh": math.nan}, None, 1.0)
    publisher.send("gps.x", route, {"kmh": None}, None, 1.0)
    assert [parse_stamp(message_id).number for _, message_id in broker.sent] == [1]


@pytest.mark.parametrize("quorum", ["2", 1.5, True])
async def test_a_quorum_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch, quorum: Any) -> None:
    publisher = publisher_at(Broker(), monkeypatch)
    route = await publisher.topic_route("gps")
    with pytest.raises(InputTypeError, match=f"^topic gps: quorum is {quorum!r}; allowed: a number of stores$"):
        publisher.send("gps", route, {}, quorum, 1.0)


async def test_numbers_count_per_topic_and_survive_a_reconnection(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    publisher = publisher_at(broker, monkeypatch)

    async def publish(topic: str, count: int) -> None:
        for _ in range(count):
            route = publisher.routes.get(topic) or await publisher.topic_route(topic)
            publisher.send(topic, route, {}, None, 1.0)

    await asyncio.gather(publish("gps", 3), publish("gps", 2), publish("alerts", 2))  # two find out about gps at once
    publisher.forget_routes()
    await publish("gps", 2)
    numbers: dict[str, list[int]] = {}
    for subject, message_id in broker.sent:
        numbers.setdefault(subject, []).append(parse_stamp(message_id).number)
    assert numbers == {"pub.gps": [1, 2, 3, 4, 5, 6, 7], "pub.alerts": [1, 2]}
