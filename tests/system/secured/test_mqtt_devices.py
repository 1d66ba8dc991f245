"""What an MQTT device tries besides publishing: a will for others, sessions of others, reports that are none."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from paho.mqtt import client as mqtt

from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.roles import Grants
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.identity.credentials import read_credentials
from nearcast.site.servers import fetch_monitoring
from nearcast.testing import RunningSites, sites, until

pytestmark = [pytest.mark.xdist_group("secured")]
FORBIDDEN = ("#", "$MQTT/sub/#", "$MQTT/deliver/#", "+/gps/bike1", "pub/gps/#", "$share/processors/pub/gps/bike1")


class Device:
    """A connected device. granted: whether each subscription was, in their order."""

    def __init__(self, running: RunningSites, auth: AuthFolder, user: str, will: str) -> None:
        self.granted: list[bool] = []
        self.connected = False
        self.client: Any = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=user, reconnect_on_failure=False)
        client = self.client
        client.username_pw_set(user, read_credentials(auth.credentials_file(user, "main")).token)
        client.tls_set(str(auth.ca_file))
        client.will_set(will, f"will of {user}".encode())
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        spec = running.sites["edge"].spec
        client.connect(spec.host, spec.mqtt_port or 0)
        client.loop_start()

    def _on_connect(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        self.connected = not code.is_failure

    def _on_subscribe(self, client: Any, data: Any, number: int, codes: list[Any], properties: Any) -> None:
        self.granted += [not code.is_failure for code in codes]

    def cut(self) -> None:
        """The link breaks: the broker publishes its will."""
        client, self.client = self.client, None
        if client is None:
            return
        client.loop_stop()
        if (found := client.socket()) is not None:
            found.close()
        client.on_connect = client.on_subscribe = None
        del client
        gc.collect()  # paho closes its other sockets when it is collected


async def open_as(running: RunningSites, auth: AuthFolder, user: str) -> Connection:
    credentials = read_credentials(auth.credentials_file(user, "main"))
    return await open_connection([running.url("edge")], name=user, credentials=credentials)


async def gone(running: RunningSites, device: str) -> bool:
    """Whether the broker has closed the connection of a device."""
    found = (await fetch_monitoring(running.sites["edge"].spec, "connz?limit=1000"))["connections"]
    return device not in {one.get("mqtt_client") for one in found}


async def answer_without_tls(running: RunningSites, auth: AuthFolder, user: str) -> bytes:
    """What the MQTT port answers to the right name and password that are not encrypted."""
    spec, token = running.sites["edge"].spec, read_credentials(auth.credentials_file(user, "main")).token
    fields = b"".join(len(one).to_bytes(2) + one for one in (user.encode(), user.encode(), token.encode()))
    body = b"\x00\x04MQTT\x04\xc2\x00\x3c" + fields  # version 3.1.1, a clean session, name and password
    size = bytes((len(body) & 0x7F | 0x80, len(body) >> 7))
    reader, writer = await asyncio.open_connection(spec.host, spec.mqtt_port)
    writer.write(b"\x10" + size + body)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except OSError:  # closed before it was read
        return b""
    finally:
        writer.transport.abort()


async def test_no_device_publishes_hears_or_reports_for_another(tmp_path: Path) -> None:
    deployment = sites(
        TopicSpec("gps.*"), names=("edge",), folder=tmp_path, secured=True, mqtt=True, report_seconds=0.5
    )
    async with deployment as running:
        auth = running.auth
        assert auth is not None
        for user in ("bike1", "bike2"):
            auth.add_user("device", user, grants=Grants((f"gps.{user}",), (f"gps.{user}",)), mqtt=True)
        assert not (await answer_without_tls(running, auth, "bike1")).startswith(b"\x20")  # a CONNACK
        auth.add_user("operator", "ada")
        ada = await open_as(running, auth, "ada")
        heard: list[tuple[str, bytes]] = []
        reports: list[bytes] = []
        await ada.subscribe_raw(
            subjects.publications(">"), lambda subject, reply, data, _: heard.append((subject, data))
        )
        await ada.subscribe_raw(subjects.REPORTS, lambda subject, reply, data, _: reports.append(data))
        await ada.flush()
        evil = Device(running, auth, "bike2", "pub/gps/bike1")
        honest = Device(running, auth, "bike1", "pub/gps/bike1")
        try:
            await until(lambda: evil.connected and honest.connected, 60)
            for topic in FORBIDDEN:
                evil.client.subscribe(topic, qos=1)
            await until(lambda: len(evil.granted) == len(FORBIDDEN), 60)
            assert not any(evil.granted)
            topics = [["gps.bike1", True, True, 1, 1, 1, 1, {100_000: 1}]]
            odd = msgspec.msgpack.encode({"client": "bike2", "seconds": 1.0, "topics": topics})
            for payload in (odd, b"", b"\x91" * 5000):
                evil.client.publish("mon/client/edge/bike2", payload)
            evil.client.publish("mon/client/edge/bike1", odd)
            evil.client.publish("pub/gps/bike1", b"forged", retain=True)
            evil.client.publish("pub/gps/bike2", b"own")
            await until(lambda: ("pub.gps.bike2", b"own") in heard, 60)  # all before it was looked at
            seen = len(reports)
            await until(lambda: len(reports) > seen + 1, 60)
            evil.cut()
            await until(lambda: gone(running, "bike2"), 60)
            await ada.flush()
        finally:
            evil.cut()
            honest.cut()
        await until(lambda: ("pub.gps.bike1", b"will of bike1") in heard, 60)
        assert heard == [("pub.gps.bike2", b"own"), ("pub.gps.bike1", b"will of bike1")]
        await ada.close()
