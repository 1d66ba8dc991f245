"""Arguments of a wrong type are refused where they are given."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

import nearcast


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"topic": "gps", "type": int, "on_error": 5}, "subscribe: on_error is 5; allowed: a function"),
        ({"topic": "gps", "callback": "f"}, "subscribe: callback is 'f'; allowed: a function"),
        ({"topic": 7}, "subscribe: topic is 7; allowed: a text"),
        ({"topic": "gps", "buffer": "big"}, "subscribe: buffer is 'big'; allowed: a number of messages"),
        ({"topic": "gps", "buffer": True}, "subscribe: buffer is True; allowed: a number of messages"),
        ({"topic": "gps", "cursor": 3}, "subscribe: cursor is 3; allowed: a name or a path"),
        ({"topic": "gps", "replay": "1h"}, "subscribe: replay is '1h'; allowed: True, a number of messages, a time"),
        ({"channel": "near", "params": [1]}, r"subscribe: params is \[1\]; allowed: a mapping of names to values"),
    ],
)
async def test_subscribe(arguments: dict[str, Any], complaint: str) -> None:
    client = nearcast.connect()
    with pytest.raises(TypeError, match=complaint) as error:
        client.subscribe(**arguments)
    assert isinstance(error.value, nearcast.InputError)


@pytest.mark.parametrize("number", [math.nan, math.inf])
async def test_a_parameter_of_a_channel_without_a_number_in_json(number: float) -> None:
    with pytest.raises(nearcast.InputError, match=f"^subscribe: parameter p is {number}; allowed: finite numbers$"):
        nearcast.connect().subscribe_channel("near", kind="fire", p=number)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"urls": 4222}, "connect: urls is 4222; allowed: an address or several"),
        ({"name": 5}, "connect: name is 5; allowed: a text"),
        ({"timeout": "5s"}, "connect: timeout is '5s'; allowed: a number of seconds"),
        ({"codec": "json"}, "connect: codec is 'json'; allowed: an object with the methods encode and decode"),
        ({"spool": 1}, "connect: spool is 1; allowed: a name or a path"),
    ],
)
async def test_connect(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        nearcast.connect(**arguments)


@pytest.mark.parametrize("when", [datetime(9999, 1, 1, tzinfo=UTC), 1e12, math.inf, math.nan, -math.inf])
async def test_a_time_that_no_message_can_have(when: Any) -> None:
    with pytest.raises(nearcast.InputError, match=r"^since is .*; allowed: times until the year 2255$"):
        nearcast.connect().history("gps", since=when)
