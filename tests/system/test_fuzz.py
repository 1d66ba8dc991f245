"""Anything on every subject that any process listens on: no process ends, no connection drops, reports go on.

The subjects are those that the broker says are subscribed to, so that a new one is fuzzed by itself.
NEARCAST_FUZZ=20000 sends so many messages in all instead of a few per subject.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import random
from typing import Any

import msgspec
import psutil
from msgspec import inspect
from tests.system.control import coordinator

import nearcast.protocol
from nearcast.domain.topic import TopicSpec
from nearcast.nats.connection import open_connection
from nearcast.site.servers import fetch_monitoring
from nearcast.testing import RunningSites, until

PER_SUBJECT = 40
IN_ALL = int(os.environ.get("NEARCAST_FUZZ", "0"))
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


async def listened_on(c: RunningSites) -> list[str]:
    """What is subscribed to at a broker; but the store's own subjects, and those of one request."""
    found: set[str] = set()
    for site in c.sites.values():
        subscriptions = (await fetch_monitoring(site.spec, "subsz?subs=1&limit=100000"))["subscriptions_list"]
        found |= {one["subject"] for one in subscriptions}
    return sorted(subject for subject in found if not subject.startswith(("_", "$JS", "$SYS", "$KV", "$MQTT", "$NRG")))


async def test_nothing_that_arrives_ends_a_process_or_a_connection(city) -> None:
    rng, kinds = random.Random(13), structs()
    topics = TopicSpec("gps", ("tokyo",)), TopicSpec("mov.*", ("cloud",), ("cloud",), 1)
    async with (
        city(*topics, names=("tokyo", "cloud"), report_seconds=0.5) as c,
        coordinator(c, lease=4.0, site_lost_after=30.0) as control,
    ):
        subjects = await listened_on(c)
        assert len(subjects) > 40
        agents = [site._connection for site in c.sites.values() if site._connection is not None]
        lost: list[str] = []
        for connection in (*agents, control.connection):

            async def disconnected(name: str = str(connection.options["name"])) -> None:
                lost.append(name)

            connection._disconnected_cb = disconnected
        pids = {worker.pid for site in c.sites.values() for worker in site.workers.values()}
        memory = psutil.Process().memory_info().rss
        evil = await open_connection([c.url("cloud")], name="fuzzer")
        inbox = evil.new_inbox()
        try:
            for n in range(IN_ALL or PER_SUBJECT * len(subjects)):
                subject = subjects[n % len(subjects)]
                concrete = ".".join(
                    rng.choice(["x", "gps", "mov.a"]) if part in "*>" else part for part in subject.split(".")
                )
                evil.send(concrete, b"", payload(kinds, rng), inbox if rng.random() < 0.5 else "")
                if n % 200 == 0:
                    await evil.flush()
            await evil.flush()
        finally:
            with contextlib.suppress(Exception):
                await evil.close()
        for site in c.sites:
            seen = control.leader.monitor.reports.get(site)
            await until(lambda site=site, seen=seen: control.leader.monitor.reports.get(site) not in (None, seen), 60)  # type: ignore[misc]
        assert lost == []
        assert pids <= {worker.pid for site in c.sites.values() for worker in site.workers.values()}
        assert psutil.Process().memory_info().rss - memory < 200 << 20
        assert (await control.ask("coordinator", "status"))["leader"]
