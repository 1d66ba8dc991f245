"""Publications to a durable topic that were made to hurt whoever takes, stores, indexes or reads them.

A broker looks into no header block, and takes nearly any byte in a subject.
"""

from __future__ import annotations

import contextlib
import json

import pytest
from tests.system.secured.conftest import Secured

import nearcast
from nearcast.nats import subjects
from nearcast.nats.connection import Connection
from nearcast.nats.stamp import header_block
from nearcast.site.servers import fetch_monitoring
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]

US = 1_700_000_000_000_000
STORE_FIELDS = b"Nats-Stream: x\r\nNats-Subject: pub.x\r\nNats-Sequence: none\r\nNats-Time-Stamp: never\r\n"
GOOD = b'{"n": 1}'
HOSTILE: list[tuple[bytes, bytes, bytes]] = [  # topic, header block, payload
    (b"gps.a", b"NATS/1.0\r\n" + STORE_FIELDS + b"\r\n", GOOD),
    (b"gps.a", b"NATS/1.0\r\nNats-Msg-Id: service~a:edge:%d:1\r\n%b\r\n" % (US, STORE_FIELDS), GOOD),
    (b"gps.a", b"NATS/1.0 503\r\n\r\n", GOOD),
    (b"gps.a", b"NATS/1.0 204 EOB", GOOD),
    (b"gps.a", b"NATS/1.0\r\nNats-Msg-Id: service~a:edge:%d:5" % US, GOOD),
    (b"gps.a", b"NATS/1.0\r\nNearcast-First-Stored: 5", GOOD),
    (b"gps.a", b"\xff\x00", GOOD),
    (b"gps.a", header_block(b"service~b:edge:%d:%b" % (US, b"9" * 30)), GOOD),
    (b"gps.a", header_block(b"service~b:edge:%d:%b" % (US, b"9" * 5000)), GOOD),
    (b"gps.a", header_block(b"service~b:edge:%b:1" % (b"9" * 5000)), GOOD),
    (b"gps.a", header_block(b"%b~b:edge:%d:3" % (b"s" * 5000, US)), GOOD),
    (b"gps.a", header_block(b"\xff\xfe~b:edge:%d:3" % US), GOOD),
    (b"gps.a", header_block(b"service~b:edge:%d:9007199254740991" % US), GOOD),
    (b"gps.a", header_block(b"service~c:edge:%d:1" % US), b"[" * 100_000),
    (b"gps.a", header_block(b"service~c:edge:%d:2" % US), b'{"n": %b}' % (b"9" * 6000)),
    (b"gps.a", header_block(b"service~c:edge:%d:3" % US), b'{"n": "\xff"}'),
    (b"gps.\xff\xfe", b"", GOOD),
    (b"gps.a\x0cb\x0bc", b"", GOOD),
    (b"gps.\x00", b"", GOOD),
    (b"gps.\x1b[2J", b"", GOOD),
    (b"gps." + b"x" * 4050, b"", GOOD),
    (b"gps." + b"\xff" * 4000, b"", GOOD),
    (b"gps." + "\u5f41".encode() * 1340, b"", GOOD),
    ("gps.e\u0301".encode(), b"", GOOD),
    ("gps.\u00e9".encode(), b"", GOOD),
    (b"gps.Nats-Stream:", b"", GOOD),
    (b"gps..", b"", GOOD),
    (b"gps.../../x", b"", GOOD),
]


def _send_raw(connection: Connection, topic: bytes, headers: bytes, payload: bytes) -> None:
    size = len(headers) + len(payload)
    if headers:
        command = b"HPUB pub.%b %d %d\r\n%b%b\r\n" % (topic, len(headers), size, headers, payload)
    else:
        command = b"PUB pub.%b %d\r\n%b\r\n" % (topic, size, payload)
    connection._pending.append(command)
    connection._pending_data_size += len(command)


async def _connections(secured: Secured) -> set[tuple[str, int]]:
    """Of workers and agents: name and number."""
    found = set()
    for site in secured.running.sites.values():
        for one in (await fetch_monitoring(site.spec, "connz"))["connections"]:
            if "/" in one.get("name", "") or one.get("name") in secured.running.sites:
                found.add((one["name"], one["cid"]))
    return found


async def _caught_up(secured: Secured, site: str) -> bool:
    """Whether a store's site has read all of the topic, and all of it was processed or given up, and marked."""
    services = secured.running.sites[site].agent.client_services
    assert services.store is not None
    assert services.catch_up is not None
    last = (await services.store.tail.reader.bounds(subjects.stream_name("gps.*"))).last
    return services.catch_up._followed["gps.*"].machine.read_publications >= last - 20 and not services.lags()


async def test_no_publication_stops_workers_stores_or_readers(secured: Secured) -> None:
    before = await _connections(secured)
    notified: list[bytes] = []
    async with secured.connected("service") as listener, secured.connected("service") as evil:
        await listener.subscribe_raw(subjects.notifications("gps.>"), lambda *parts: notified.append(parts[2]))
        await listener.flush()
        for topic, headers, payload in HOSTILE:
            _send_raw(evil, topic, headers, payload)
        with contextlib.suppress(Exception):  # the broker may end the connection of who sends an empty level
            await evil.flush()
        # A dead letter is larger than the publication, which is as large as a broker takes.
        _send_raw(listener, b"gps.large", b"", b"x" * listener.max_payload)
        block = header_block(b"service~d:edge:%d:1" % US)
        _send_raw(listener, b"gps.large", block, b"x" * (listener.max_payload - len(block)))
        for n in range(6):  # a page of history has less room than two of these
            _send_raw(listener, b"gps.large", b"", b"y" * (250_000 if n % 2 else 1 << 20))
        _send_raw(listener, b"gps.last", header_block(b"service~z:edge:%d:1" % (US + 9)), b'{"n": 777}')
        await listener.flush()
        await until(lambda: b'{"n":777}' in notified, 60)
        assert listener.is_connected

    file = secured.auth.credentials_file("service", "main")
    async with nearcast.connect(secured.running.url("edge"), credentials=file) as client:
        everything = [message async for message in client.history("gps.a", last=100, publications=True)]
        assert len(everything) >= 10
        last = [
            message async for message in client.history("gps.last", publications=True, where=nearcast.field("n") == 777)
        ]
        assert [json.loads(message.payload)["n"] for message in last] == [777]
        found = [
            message async for message in client.history("gps.a", publications=True, where=nearcast.field("n") == 1)
        ]
        assert len(found) >= 8, "what is nested deeply is left out, and the rest is found"

    for name in ("edge", "cloud"):
        await until(lambda name=name: _caught_up(secured, name), 120)  # type: ignore[misc]
    await secured.reported()
    assert before <= await _connections(secured), "no worker and no agent lost its connection"
    assert not secured.lost
