"""Payloads: JSON has no NaN; typed ones are decoded and validated by msgspec, whatever the codec."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from nearcast.codec import JSON, typed_decoder
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


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("make", "at"),
    [
        (lambda number: number, "the value"),
        (lambda number: {"note": None, "kmh": number}, "kmh"),
        (lambda number: {"cars": [{"kmh": 50.0}, {"kmh": number}]}, r"cars\[1\].kmh"),
        (lambda number: [1.5, (2, number)], r"\[1\]\[1\]"),
        (lambda number: {7: number}, r"\[7\]"),
        (lambda number: Reading("a", number), "celsius"),
        (lambda number: {"id": 1 << 70, "kmh": number}, "kmh"),
        (lambda number: {"at": Position(0.0, number)}, "at.y"),
        (lambda number: {"raw": msgspec.Raw(b"null"), "kmh": number}, "kmh"),
    ],
)
def test_what_json_has_no_number_for_is_refused(make: Callable[[float], Any], at: str, number: float) -> None:
    complaint = f"{at} is {number}; JSON has no NaN or infinity: leave the field out or send a text"
    with pytest.raises(InputError, match=f"^{complaint}$"):
        JSON.encode(make(number))


def test_null_is_not_refused() -> None:
    assert JSON.decode(JSON.encode({"a": None, "b": 1 << 70})) == {"a": None, "b": 1 << 70}
    value = {"a": None, "b": [None, 1.5], "c": "null", "d": Reading("null", 1.0), "raw": msgspec.Raw(b"null")}
    assert JSON.decode(JSON.encode(value)) == {
        "a": None, "b": [None, 1.5], "c": "null", "d": {"sensor": "null", "celsius": 1.0}, "raw": None
    }  # fmt: skip
    deep: Any = math.nan
    for _ in range(900):
        deep = [deep]
    with pytest.raises(InputError, match=r"\[0\] is nan"):
        JSON.encode(deep)
