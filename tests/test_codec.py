"""Typed payloads: decoded and validated by msgspec, whatever the codec."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from nearcast.codec import typed_decoder
from nearcast.errors import InputError


class Reading(msgspec.Struct):
    sensor: str
    celsius: float


@dataclass
class Position:
    x: float
    y: float


class MessagePack:
    encode = staticmethod(msgspec.msgpack.encode)
    decode = staticmethod(msgspec.msgpack.decode)


def test_structs_dataclasses_and_builtin_types() -> None:
    assert typed_decoder(Reading)(b'{"sensor": "a", "celsius": 20.5}') == Reading("a", 20.5)
    assert typed_decoder(Position)(b'{"x": 1.0, "y": 2.0}') == Position(1.0, 2.0)
    assert typed_decoder(dict[str, int])(b'{"a": 1}') == {"a": 1}


def test_another_codec() -> None:
    decode = typed_decoder(Reading, MessagePack())
    assert decode(msgspec.msgpack.encode({"sensor": "a", "celsius": 1.0})) == Reading("a", 1.0)
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.msgpack.encode({"sensor": 7, "celsius": 1.0}))


@pytest.mark.parametrize("payload", [b"", b"{", b"null", b"[1]", b'{"sensor": "a"}', b'{"sensor": 7, "celsius": 1}'])
def test_other_values_are_refused(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        typed_decoder(Reading)(payload)


def test_a_type_that_cannot_be_decoded_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"type is .*, which msgspec cannot decode"):
        typed_decoder(list[Reading] | list[int])  # type: ignore[arg-type]
