"""Codecs: how a Python value becomes a payload and back. JSON unless the user brings another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from nearcast.errors import InputError

__all__ = ["JSON", "Codec", "JsonCodec", "typed_decoder"]

T = TypeVar("T")


class Codec(Protocol):
    """Anything with these two methods will do, for example `msgspec.msgpack` wrapped in a class."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, payload: bytes) -> Any: ...


class JsonCodec:
    """JSON by msgspec: dataclasses, msgspec structs, dates and the plain types."""

    def __init__(self) -> None:
        self.encode = msgspec.json.Encoder().encode
        self.decode = msgspec.json.Decoder().decode


JSON: Codec = JsonCodec()


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
