"""Codecs: how a Python value becomes a payload and back. JSON unless the user brings another one."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

__all__ = ["JSON", "Codec", "JsonCodec"]


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
