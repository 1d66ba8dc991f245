"""What an MQTT device published with QoS 1 while no store of its topic answered is processed afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import paho.mqtt.client as mqtt
from tests.system.test_catch_up import deployment, site_process

import nearcast
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import until


@contextlib.asynccontextmanager
async def mqtt_device(port: int, acknowledged: list[int]) -> AsyncIterator[mqtt.Client]:
    """An unmodified device; which of its publications its broker has acknowledged."""
    device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="meter-7", protocol=mqtt.MQTTv311)
    device.on_publish = lambda client, data, number, code, properties: acknowledged.append(number)
    await asyncio.to_thread(device.connect, "127.0.0.1", port)
    device.loop_start()
    try:
        await until(device.is_connected, limit=60)
        yield device
    finally:
        await asyncio.to_thread(device.disconnect)
        await asyncio.to_thread(device.loop_stop)


async def test_a_site_keeps_what_its_devices_publish_while_no_store_answers(tmp_path: Path) -> None:
    """Then the device's site is killed, too. All that was acknowledged arrives."""
    config, urls = deployment(tmp_path, managed_by="osaka", replicas=("osaka", "cloud"), mqtt="tokyo")
    mqtt_port = int(urls["tokyo"].rpartition(":")[2]) + 6
    acknowledged: list[int] = []
    got: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        tokyo = await stack.enter_async_context(site_process(config, "tokyo"))
        async with mqtt_device(mqtt_port, acknowledged) as device:
            for n in range(20):
                device.publish("pub/alerts", json.dumps({"n": n}), qos=1)
            await until(lambda: len(acknowledged) == 20, limit=60)
        tokyo.kill()
        await tokyo.wait()
        for name in ("osaka", "cloud"):
            await stack.enter_async_context(site_process(config, name))
        reader = await stack.enter_async_context(nearcast.connect(urls["cloud"], name="reader", timeout=60))
        await reader.subscribe("alerts", callback=lambda message: got.append(message.data["n"]))
        await stack.enter_async_context(site_process(config, "tokyo"))
        await until(lambda: set(got) == set(range(20)), limit=120)
        assert sorted(got) == list(range(20)), "none twice: no store had any of them"


async def test_what_stores_missed_is_sent_again_while_devices_go_on(tmp_path: Path) -> None:
    """A device that never pauses must not keep its site from looking at what it published before."""
    config, urls = deployment(tmp_path, managed_by="osaka", replicas=("osaka", "cloud"), mqtt="tokyo")
    mqtt_port = int(urls["tokyo"].rpartition(":")[2]) + 6
    acknowledged: list[int] = []
    got: list[int] = []
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(site_process(config, "tokyo"))
        device = await stack.enter_async_context(mqtt_device(mqtt_port, acknowledged))

        async def publish() -> None:
            for n in itertools.count():
                device.publish("pub/alerts", json.dumps({"n": n}), qos=1)
                await asyncio.sleep(0.1)

        publishing = asyncio.create_task(publish())
        stack.push_async_callback(cancel_and_wait, publishing)
        await until(lambda: len(acknowledged) >= 20, limit=60)
        for name in ("osaka", "cloud"):
            await stack.enter_async_context(site_process(config, name))
        reader = await stack.enter_async_context(nearcast.connect(urls["cloud"], name="reader", timeout=60))
        await reader.subscribe("alerts", callback=lambda message: got.append(message.data["n"]))
        await until(lambda: set(got) >= set(range(20)), limit=120)
        assert not publishing.done()
