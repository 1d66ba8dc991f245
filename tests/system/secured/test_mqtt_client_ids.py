"""Two MQTT devices and one client id: a broker closes the older connection, and the newer has its session."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paho.mqtt import client as mqtt

from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.roles import Grants
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import read_credentials
from nearcast.testing import RunningSites, sites, until

pytestmark = [pytest.mark.xdist_group("secured")]


@contextlib.asynccontextmanager
async def deployment(folder: Path) -> AsyncIterator[tuple[RunningSites, AuthFolder]]:
    async with sites(TopicSpec("gps.*"), names=("edge",), folder=folder, secured=True, mqtt=True) as running:
        assert running.auth is not None
        yield running, running.auth


@contextlib.contextmanager
def device(running: RunningSites, auth: AuthFolder, user: str, client_id: str) -> Iterator[Any]:
    """got: what came. closed: how often the broker closed its connection."""
    made = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=False)
    made.username_pw_set(user, read_credentials(auth.credentials_file(user, "main")).token)
    made.tls_set(str(auth.ca_file))
    made.reconnect_delay_set(1, 1)
    state = SimpleNamespace(client=made, got=[], connected=0, closed=0, granted=0)
    made.on_message = lambda c, u, message: state.got.append(message.payload)

    def count(name: str) -> Any:
        return lambda *_: setattr(state, name, getattr(state, name) + 1)

    made.on_connect, made.on_disconnect, made.on_subscribe = count("connected"), count("closed"), count("granted")
    spec = running.sites["edge"].spec
    made.connect(spec.host, spec.mqtt_port or 0)
    made.loop_start()
    try:
        yield state
    finally:
        made.disconnect()
        made.loop_stop()
        made.on_message = made.on_connect = made.on_disconnect = made.on_subscribe = None
        del state.client, made
        gc.collect()  # paho closes its sockets when it is collected


async def test_who_takes_the_client_id_of_another_device_is_closed_and_hears_nothing(tmp_path: Path) -> None:
    async with deployment(tmp_path) as (running, auth):
        for user in ("bike1", "bike2"):
            auth.add_user("device", user, grants=Grants((f"gps.{user}",), (f"gps.{user}",)), mqtt=True)
        auth.add_user("service", "service")
        credentials = read_credentials(auth.credentials_file("service", "main"))
        service = await open_connection([running.url("edge")], name="service", credentials=credentials)
        limits = running.sites["edge"].limits
        assert limits is not None

        async def heard() -> bool:
            await service.publish(subjects.publications("gps.bike1"), b"for bike1")
            await asyncio.sleep(0.2)
            return b"for bike1" in bike1.got

        with device(running, auth, "bike1", "bike1") as bike1:
            await until(lambda: bike1.connected == 1)
            bike1.client.subscribe("pub/gps/bike1", qos=1)
            await until(lambda: bike1.granted == 1)
            with device(running, auth, "bike2", "bike1") as bike2:
                await until(lambda: bike1.closed >= 1)  # the broker knows no better
                await until(lambda: limits.closed("main").get("bike2", 0) >= 1)
                await until(lambda: bike2.closed >= 1)
            await until(heard, 60)
            assert bike2.got == []
        with device(running, auth, "bike1", "bike1/2") as other:
            await until(lambda: other.connected == 1)
            await until(heard, 60)
            assert other.closed == 0
        await service.close()
