"""Addresses that cannot be a broker's, who is refused, and what a flush confirms. No NATS server runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path

import pytest
from nats.errors import Error as NatsError

from nearcast import InputError
from nearcast.auth.certificates import make_authority, make_certificate
from nearcast.auth.deployment_keys import make_deployment_keys
from nearcast.auth.roles import Grants
from nearcast.domain.site import SiteSpec
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.identity.credentials import read_credentials
from nearcast.testing import until


@pytest.mark.parametrize(
    "url", ["", "nats://", "nats://127.0.0.1:99999", "nats://127.0.0.1:0", "127.0.0.1:port", "http://127.0.0.1:4222"]
)
async def test_an_address_that_cannot_be_one_is_refused_at_once(url: str) -> None:
    with pytest.raises(InputError, match=r"the broker's address is .*; allowed: an address such as nats://"):
        await open_connection([url], name="test")


async def test_whoever_is_cancelled_while_it_connects_is_cancelled() -> None:
    """nats-py swallowed it: in some steps a connection came, as if nobody had cancelled, and the caller ran on."""
    swallowed = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "version": "2.15.1", "max_payload": 1048576, "proto": 1}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for steps in range(200):
        opening = asyncio.create_task(open_connection([f"nats://127.0.0.1:{port}"], name="test"))
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelled = opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            swallowed += [steps] if cancelled else []
            await opening.result().close()
        if not cancelled:
            break
    else:
        pytest.fail("it never had the time to connect")
    assert swallowed == []
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("refusal", ["User Authentication Revoked", "Authorization Violation"])
async def test_one_that_is_refused_while_it_is_connected_connects_again(tmp_path: Path, refusal: str) -> None:
    """`auth rotate --finish` ended the connection of a site's agent for good: nothing worked until a restart."""
    auth = make_deployment_keys(tmp_path / "auth", [SiteSpec("tokyo")])
    file = auth.add_user("device", "car7", grants=Grants(("gps.car7",)))
    links = 0

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal links
        links += 1
        first = links == 1
        writer.write(b'INFO {"server_id": "x", "version": "2.15.1", "nonce": "n", "headers": true, "proto": 1}\r\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            elif line.startswith(b"SUB") and first:
                writer.write(b"-ERR '%b'\r\n" % refusal.encode())
                break
        writer.close()

    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connection = await open_connection([url], name="test", credentials=read_credentials(file))
    try:
        await connection.subscribe("ntf.gps.car7")
        await until(lambda: links == 2 and connection.is_connected)
    finally:
        await connection.close()
        server.close()
        await server.wait_closed()


async def test_a_flush_confirms_what_was_sent_before_it() -> None:
    """The ping went ahead of what waited to be sent: its answer came although the broker had nothing of that yet."""
    lines: list[bytes] = []

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "version": "2.15.1", "max_payload": 1 << 20, "headers": True, "proto": 1}
        writer.write(b"INFO %b\r\n" % json.dumps(info).encode())
        while line := await reader.readline():
            lines.append(line.split()[0] if line.split() else b"")
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await open_connection([f"nats://127.0.0.1:{port}"], name="test")
    try:
        lines.clear()
        connection.send("ntf.alerts", b"", b"sent first")
        await connection.flush()
        assert lines.index(b"PUB") < lines.index(b"PING")
        assert lines.count(b"PUB") == 1
    finally:
        await connection.close()
        server.close()
        await server.wait_closed()


async def test_of_a_refusal_by_tls_asyncio_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A revoked user was told "returning true from eof_received() has no effect when using ssl" before our error."""
    make_authority(tmp_path)
    make_certificate(tmp_path, "tokyo", [])
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(tmp_path / "tokyo.pem", tmp_path / "tokyo.key")
    closed = asyncio.Event()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "version": "2.15.1", "tls_required": true, "proto": 1}\r\n')
        await writer.start_tls(server_side)
        assert (await reader.readline()).startswith(b"CONNECT ")
        writer.write(b"-ERR 'Authorization Violation'\r\n")
        writer.close()
        with contextlib.suppress(ssl.SSLError, OSError):
            await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connection = Connection()
    try:
        with pytest.raises(NatsError, match=r"(?i)authorization violation"):
            await connection.connect(
                [url], tls=ssl.create_default_context(cafile=tmp_path / "ca.pem"), allow_reconnect=False
            )
        await closed.wait()
    finally:
        await connection.close()
        server.close()
        await server.wait_closed()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


async def test_what_must_not_go_by_the_next_link_is_forgotten_with_the_lost_one() -> None:
    subjects: list[bytes] = []
    links = 0

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal links
        links += 1
        info = {"server_id": "x", "client_id": links, "version": "2.15.1", "max_payload": 1 << 20, "headers": True}
        writer.write(b"INFO %b\r\n" % json.dumps(info).encode())
        while line := await reader.readline():
            if line.startswith(b"HPUB"):
                subjects.append(line.split()[1])
                if links == 1:
                    break
            elif line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        writer.close()

    async def lost() -> None:
        for subject in ("mrk.gps", "ntf.mrk.gps"):
            connection.send(subject, b"NATS/1.0\r\n\r\n", b" mrk.gps")
        connection.forget_unsent_to("mrk.")

    server = await asyncio.start_server(broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await open_connection([f"nats://127.0.0.1:{port}"], name="test", on_disconnect=lost)
    before = connection.link
    connection.send("mrk.gps", b"NATS/1.0\r\n\r\n", b"")
    await until(lambda: links == 2 and connection.is_connected)
    await connection.flush()
    assert connection.link != before
    assert subjects == [b"mrk.gps", b"ntf.mrk.gps"]
    await connection.close()
    server.close()
    await server.wait_closed()
