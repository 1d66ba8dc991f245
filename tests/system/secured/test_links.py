"""Who may open which link: leaf nodes are stores, gateways are sites, and nothing is spoken without TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator

import pytest
from tests.system.secured.conftest import Secured

from nearcast.auth.role_table import role_users
from nearcast.nats.connection import ConnectionLostError, open_connection
from nearcast.nats.identity.credentials import read_credentials
from nearcast.nats.identity.keys import read_key

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connection(host: str, port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[Streams]:
    """Without TLS, or with TLS from the first byte."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other side closes."""
    came = b""
    async with asyncio.timeout(60):
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                came += line
    return came


async def as_leaf_node(secured: Secured, user: str) -> bytes:
    """What a broker answers to a leaf node with the credentials of a user: the first line that is no interest."""
    spec = secured.running.sites["edge"].spec
    credentials = read_credentials(secured.auth.credentials_file(user, "main"))
    async with connection(spec.host, spec.leaf_port) as (reader, writer):
        challenge = json.loads((await reader.readline()).removeprefix(b"INFO "))["nonce"]
        await writer.start_tls(ssl.create_default_context(cadata=credentials.ca), server_hostname=spec.host)
        signature = base64.urlsafe_b64encode(read_key(credentials.seed).sign(challenge.encode())).decode().rstrip("=")
        hello = {"jwt": credentials.token, "sig": signature, "name": "evil", "version": "2.15.1", "tls_required": True}
        writer.write(b"CONNECT %b\r\nPING\r\n" % json.dumps(hello).encode())
        async with asyncio.timeout(60):
            while (line := await reader.readline()).startswith((b"INFO", b"LS")):
                pass
            return line


async def test_only_a_store_connects_as_a_leaf_node(secured: Secured) -> None:
    """As one, a device was told what everybody subscribes to, and no rate or number of connections held for it."""
    for role, user, _ in role_users():
        answer = await as_leaf_node(secured, user)
        if role == "store":
            assert answer == b"PONG\r\n"
        else:
            assert b"Authorization Violation" in answer, (role, answer)


async def test_a_store_is_no_client(secured: Secured) -> None:
    credentials = read_credentials(secured.auth.credentials_file("edge-store", "main"))
    with pytest.raises(ConnectionLostError, match="refuses the credentials of edge-store"):
        await open_connection([secured.running.url("edge")], name="evil", credentials=credentials)


async def test_nothing_is_spoken_without_tls(secured: Secured) -> None:
    spec = secured.running.sites["edge"].spec
    token = read_credentials(secured.auth.credentials_file("car7", "main")).token
    for port in (spec.port, spec.leaf_port, spec.store_port, spec.gateway_port):
        async with connection(spec.host, port) as (reader, writer):
            if port != spec.gateway_port:  # gateways begin with TLS
                assert b'"tls_required":true' in await asyncio.wait_for(reader.readline(), 60)
            writer.write(b"CONNECT %b\r\nPING\r\n" % json.dumps({"jwt": token, "sig": ""}).encode())
            assert b"PONG" not in await until_closed(reader), port


async def test_sites_know_each_other_by_certificate_and_by_password(secured: Secured) -> None:
    """Neither is enough: a stranger who knows the password, or a certificate with a wrong one."""
    spec = secured.running.sites["edge"].spec
    ca = secured.auth.ca_file

    async def answer(password: str, certificate: str) -> bytes:
        context = ssl.create_default_context(cafile=str(ca))
        if certificate:
            context.load_cert_chain(ca.with_name(f"{certificate}.pem"), ca.with_name(f"{certificate}.key"))
        hello = {"user": "gateway", "pass": password, "name": "cloud", "gateway": "cloud", "tls_required": True}
        async with connection(spec.host, spec.gateway_port, context) as (reader, writer):
            writer.write(b"CONNECT %b\r\nPING\r\n" % json.dumps(hello).encode())
            with contextlib.suppress(OSError):
                async with asyncio.timeout(60):
                    while line := await reader.readline():
                        if not line.startswith(b"INFO"):
                            return line
        return b""

    right = secured.auth.gateway_password
    assert await answer(right, "") == b""
    assert b"Authorization Violation" in await answer("wrong", "cloud")
    assert b"Violation" not in await answer(right, "cloud")
