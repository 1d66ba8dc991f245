"""Messages of any kind for any subject: structs that travel with changed bytes, and bytes that are nothing."""

from __future__ import annotations

import importlib
import pkgutil
import random
from typing import Any

import msgspec
from msgspec import inspect

import nearcast.protocol
from nearcast.site.servers import fetch_monitoring
from nearcast.testing import RunningSites

__all__ = ["concrete", "payload", "structs", "subscribed_subjects"]

NAMES = ("tokyo", "cloud", "gps", "worker-0", "car7", "x" * 70, "../x", "", "a.b", "*", ">")


def structs() -> list[Any]:
    modules = [
        importlib.import_module(f"nearcast.protocol.{one.name}")
        for one in pkgutil.iter_modules(nearcast.protocol.__path__)
    ]
    found = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    return sorted((kind for kind in found if issubclass(kind, msgspec.Struct)), key=lambda kind: kind.__name__)


def value(kind: Any, rng: random.Random) -> Any:
    """Of a type, mostly; at times anything."""
    if rng.random() < 0.05:
        return rng.choice([None, -1, 2**63, 1e308, float("nan"), "x" * 1000, [], {}, [[[]]], True, b"\xff"])
    match kind:
        case inspect.Metadata(type=inner):
            return value(inner, rng)
        case inspect.IntType():
            return rng.choice([0, 1, 7, 2**31, 2**53, -1])
        case inspect.FloatType():
            return rng.choice([0.0, 1.5, 1e9, -1.0])
        case inspect.StrType():
            return rng.choice(NAMES)
        case inspect.BytesType():
            return rng.randbytes(rng.randrange(20))
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.LiteralType(values=values):
            return rng.choice(values)
        case inspect.UnionType(types=kinds):
            return value(rng.choice(kinds), rng)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [value(item, rng) for _ in range(rng.choice([0, 1, 3, 8]))]
        case inspect.TupleType(item_types=kinds):
            return [value(one, rng) for one in kinds]
        case inspect.NamedTupleType(fields=fields):
            return [value(field.type, rng) for field in fields]
        case inspect.DictType(key_type=key, value_type=item):
            return {str(value(key, rng)): value(item, rng) for _ in range(rng.choice([0, 1, 3]))}
        case inspect.StructType(fields=fields, array_like=array_like):
            values = {field.encode_name: value(field.type, rng) for field in fields if rng.random() < 0.95}
            return list(values.values()) if array_like else values
    return None


def payload(kinds: list[Any], rng: random.Random) -> bytes:
    """A struct that travels, as JSON or msgpack, perhaps with changed bytes; or any bytes."""
    if rng.random() < 0.15:
        return rng.choice([b"", rng.randbytes(rng.randrange(200)), b"[" * 5000, b"\x91" * 5000])
    codec: Any = rng.choice([msgspec.json, msgspec.msgpack])
    made = bytearray(codec.encode(value(inspect.type_info(rng.choice(kinds)), rng)))
    for _ in range(rng.choice([0, 0, 0, 1, 5])):
        if made:
            made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


async def subscribed_subjects(c: RunningSites) -> set[str]:
    """All that is subscribed to at a broker, as it says."""
    found: set[str] = set()
    for site in c.sites.values():
        subscriptions = (await fetch_monitoring(site.spec, "subsz?subs=1&limit=100000"))["subscriptions_list"]
        found |= {one["subject"] for one in subscriptions}
    return found


def concrete(pattern: str, rng: random.Random) -> str:
    """A subject that a pattern covers."""
    return ".".join(rng.choice(["x", "gps", "mov.a"]) if part in "*>" else part for part in pattern.split("."))
