"""Codecs: how a Python value becomes a payload and back. JSON unless the user brings another one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from nearcast.errors import InputError

__all__ = ["JSON", "Codec", "JsonCodec", "check_finite", "typed_decoder"]

T = TypeVar("T")
# A float of MessagePack with the exponent of NaN and infinity; other bytes may look like it.
_PACKED_NON_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


class Codec(Protocol):
    """Anything with these two methods will do, for example `msgspec.msgpack` wrapped in a class."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, payload: bytes) -> Any: ...


class JsonCodec:
    """JSON by msgspec: dataclasses, msgspec structs, dates and the plain types; InputError for NaN and infinity."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._pack = msgspec.msgpack.Encoder().encode
        self.decode = msgspec.json.Decoder().decode

    def encode(self, value: Any) -> bytes:
        payload = self._encode(value)
        if b"null" in payload and self._may_be_non_finite(value):  # msgspec writes null for NaN and infinity
            check_finite(value)
        return payload

    def _may_be_non_finite(self, value: Any) -> bool:
        """Many payloads have null. MessagePack has such numbers, and its bytes are searched faster than a value."""
        try:
            return _PACKED_NON_FINITE.search(self._pack(value)) is not None
        except OverflowError:  # an integer that only JSON has
            return True


JSON: Codec = JsonCodec()


def check_finite(value: Any) -> None:
    """InputError for NaN and infinity, wherever they are in a value; it names the place."""
    found = _non_finite(value)
    if found is not None:
        place, number = found
        raise InputError(
            f"{place or 'the value'} is {number}; JSON has no NaN or infinity: leave the field out or send a text"
        )


def _non_finite(value: Any) -> tuple[str, float] | None:
    """The first such number that is found, and where. Without recursion: msgspec takes deeper values than Python."""
    plain = msgspec.to_builtins(value, enc_hook=lambda _: None)  # the hook is for msgspec.Raw, which is JSON already
    waiting: list[tuple[Any, Any]] = [((), (plain,))]  # a place is (that of its container, its key)
    while waiting:
        place, container = waiting.pop()
        for key, inner in container.items() if type(container) is dict else enumerate(container):
            kind = type(inner)
            if kind is float:
                if not math.isfinite(inner):
                    return _written((place, key)), inner
            elif kind is dict or kind is list or kind is tuple:
                waiting.append(((place, key), inner))
    return None


def _written(place: Any) -> str:
    """A place as Python programmers write it, such as cars[1].kmh; empty for the value itself."""
    parts: list[str] = []
    while place[0]:  # the outermost key is that of the value itself
        place, key = place
        parts.append(f"[{key}]" if type(key) is int else f".{key}")
    return "".join(reversed(parts)).removeprefix(".")


def typed_decoder(kind: type[T], codec: Codec = JSON) -> Callable[[bytes], T]:
    """Decodes a payload and validates it as a type that msgspec knows: structs, dataclasses, builtin and typing types.

    The decoder raises msgspec.ValidationError for a value of another type, and what the codec raises.
    """
    try:
        decoder = msgspec.json.Decoder(kind)
    except TypeError as error:
        raise InputError(f"type is {kind!r}, which msgspec cannot decode: {error}") from error
    if isinstance(codec, JsonCodec):
        return decoder.decode
    return lambda payload: msgspec.convert(codec.decode(payload), kind)
