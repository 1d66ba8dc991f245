"""Messages of any kind for any subject: structs that travel with changed bytes, and bytes that are nothing."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import psutil
from msgspec import inspect

import nearcast.protocol
from nearcast.site.servers import fetch_monitoring
from nearcast.site.site import Site
from nearcast.testing import RunningSites, until

__all__ = [
    "MemoryGrowth",
    "all_caught_up",
    "concrete",
    "connections",
    "headers",
    "odd_concrete",
    "payload",
    "processes",
    "structs",
    "subscribed_subjects",
]

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
        case inspect.DataclassType(fields=fields):
            return {field.encode_name: value(field.type, rng) for field in fields if rng.random() < 0.95}
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


def headers(rng: random.Random) -> bytes:
    """A header block, mostly none: what stores and brokers write, ids that are none, and any bytes."""
    if rng.random() < 0.7:
        return b""
    number = b"%d" % rng.choice([0, 1, 7, 2**53, 2**64, 10**30])
    lines = [
        b"Nats-Msg-Id: car7~a:tokyo:%b:%b" % (number, number),
        b"Nats-Msg-Id: " + rng.randbytes(rng.choice([0, 5, 3000])).replace(b"\r\n", b""),
        b"Nats-Stream: x\r\nNats-Subject: pub.x\r\nNats-Sequence: %b\r\nNats-Time-Stamp: never" % number,
        b"Nearcast-First-Stored: " + number,
        b"Nearcast-Late: " + number,
        b"Nearcast-Reason: \xff",
        b"Nats-Rollup: all",
        b"Nats-Service-Error: odd",
    ]
    status = rng.choice([b"NATS/1.0", b"NATS/1.0", b"NATS/1.0", b"NATS/1.0 503", b"NATS/1.0 204 EOB", rng.randbytes(9)])
    block = b"\r\n".join([status, *rng.sample(lines, rng.randrange(4))])
    return block + rng.choice([b"\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n", b"\r\n", b""])


async def subscribed_subjects(sites: Mapping[str, Site]) -> set[str]:
    """All that is subscribed to at a broker, as it says."""
    found: set[str] = set()
    for site in sites.values():
        subscriptions = (await fetch_monitoring(site.spec, "subsz?subs=1&limit=100000"))["subscriptions_list"]
        found |= {one["subject"] for one in subscriptions}
    return found


async def connections(sites: Mapping[str, Site]) -> set[tuple[str, str, int]]:
    """All that brokers have, of whomever: site, kind or name, and the number that a new connection would not have.

    Those without a name are round trips that are being measured.
    """
    found: set[tuple[str, str, int]] = set()
    for name, site in sites.items():
        clients = (await fetch_monitoring(site.spec, "connz?limit=65536"))["connections"]
        stores = (await fetch_monitoring(site.spec, "leafz"))["leafs"]
        found |= {(name, one["name"], one["cid"]) for one in clients if one.get("name")}
        found |= {(name, f"leaf {one['account']}", one["id"]) for one in stores}
    return found


def processes(c: RunningSites) -> list[psutil.Process]:
    """This one (agents, coordinator), brokers, stores, and workers that host a topic; idle ones come and go."""
    pids = {psutil.Process().pid}
    for site in c.sites.values():
        servers = [site.broker, site.store, *(site.workers[name] for name in site.workers if name == "worker-0")]
        pids |= {one.pid for one in servers if one is not None and one.pid is not None}
    return [psutil.Process(pid) for pid in sorted(pids)]


async def all_caught_up(c: RunningSites) -> None:
    """Each worker has taken what was sent to it: on a busy machine it would seem to hang behind many messages."""

    async def answered() -> bool:
        return all([len(await site.worker_stats()) >= len(site.workers) for site in c.sites.values()])

    await until(answered, 120)


class MemoryGrowth:
    """Of processes, in steps: what the first part of the messages takes is warming up, later ones must add little."""

    def __init__(self, watched: Iterable[psutil.Process]) -> None:
        self._steps = {process: [process.memory_info().rss] for process in watched}

    def note(self) -> None:
        """A part of the messages was sent."""
        for process, steps in self._steps.items():
            steps.append(process.memory_info().rss)

    def of_last_part(self) -> dict[str, float]:
        """MiB that each process gained since the last but one note."""
        for process, steps in self._steps.items():
            print(f"{_described(process)}: {', '.join(f'{size / 2**20:.0f}' for size in steps)} MiB")
        return {_described(process): (steps[-1] - steps[-2]) / 2**20 for process, steps in self._steps.items()}


def _described(process: psutil.Process) -> str:
    return f"{process.name()} {process.pid}"


def concrete(pattern: str, rng: random.Random) -> str:
    """A subject that a pattern covers."""
    return _filled(pattern, ["x", "gps", "mov.a"], rng)


def odd_concrete(pattern: str, rng: random.Random) -> str:
    """The same, with levels that no client library makes and brokers take."""
    odd = ["\x0c", "\x00", "\u5f41" * 50, "x" * 3000, "@car7", "a/b", "$x"]
    return _filled(pattern, ["x", "gps", "mov.a", rng.choice(odd)], rng)


def _filled(pattern: str, levels: list[str], rng: random.Random) -> str:
    return ".".join(rng.choice(levels) if part in "*>" else part for part in pattern.split("."))
