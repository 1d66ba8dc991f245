"""The message as subscribers see it."""

from __future__ import annotations

import gc

import pytest

from nearcast.codec import JSON
from nearcast.message import Message, PayloadError
from nearcast.nats.stamp import header_block


def test_messages_that_wait_are_not_looked_at_by_the_garbage_collector() -> None:
    """With TLS they come in larger bursts, and whole collections took a tenth of a subscriber's time."""
    read, unread = (Message("gps", b'{"n": [1]}', header_block(b"car~a:edge:7:1"), JSON.decode) for _ in range(2))
    assert read.data == {"n": [1]}
    assert (read.publisher, read.id) == ("car", "car~a:edge:7:1")
    assert not gc.is_tracked(read)
    assert not gc.is_tracked(unread)


def test_a_payload_is_decoded_once_and_errors_name_the_message() -> None:
    calls: list[bytes] = []

    def decode(payload: bytes) -> bytes:
        calls.append(payload)
        if payload == b"bad":
            raise ValueError("no")
        return payload

    message = Message("gps", b"x", b"", decode)
    assert (message.data, message.data, calls) == (b"x", b"x", [b"x"])
    with pytest.raises(PayloadError, match=r"message \(no id\) of topic gps: no") as raised:
        _ = Message("gps", b"bad", b"", decode).data
    assert raised.value.message.payload == b"bad"
    assert message != Message("gps", b"x", b"", decode)
    assert len({message, message}) == 1
