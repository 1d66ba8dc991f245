"""An MQTT device that knows nothing of Nearcast publishes to a processor and receives its notifications."""

from __future__ import annotations

import asyncio
import json

import msgspec
import paho.mqtt.client as mqtt
from tests.system.worker_counts import stats_of_workers

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.protocol.reports import SiteReport
from nearcast.testing import until


async def test_an_unmodified_device_publishes_and_is_notified(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo",)), names=("tokyo", "osaka"), mqtt=True, report_seconds=0.3) as c:
        got: list[tuple[str, dict]] = []
        subscribed = asyncio.Event()
        loop = asyncio.get_running_loop()
        device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="meter-7", protocol=mqtt.MQTTv311)
        device.on_message = lambda _c, _u, message: got.append((message.topic, json.loads(message.payload)))
        device.on_subscribe = lambda *_: loop.call_soon_threadsafe(subscribed.set)
        spec = c.sites["tokyo"].spec
        await asyncio.to_thread(device.connect, spec.host, spec.mqtt_port)
        device.loop_start()
        try:
            device.subscribe("ntf/gps/r1", qos=1)
            await asyncio.wait_for(subscribed.wait(), 20)
            async with nearcast.connect(c.url("osaka")) as client, client.subscribe("gps.r1") as subscription:
                await c.interest_settled()
                device.publish("pub/gps/r1", json.dumps({"n": 1}), qos=0)
                device.publish("pub/gps/r1", json.dumps({"n": 2}), qos=1)
                await until(lambda: len(got) == 2)
                assert sorted(data["n"] for _, data in got) == [1, 2]
                assert {topic for topic, _ in got} == {"ntf/gps/r1"}
                message = await anext(subscription)
                assert (message.publisher, message.home) == ("anonymous", "tokyo")
            reports = []
            connection = await open_connection([c.url("osaka")], name="test")
            await connection.subscribe_raw(subjects.report("tokyo"), lambda *parts: reports.append(parts[2]))
            await until(lambda: bool(reports))
            broker = msgspec.msgpack.decode(reports[-1], type=SiteReport).broker
            await connection.close()
            assert broker.mqtt_connections == 1
            stats = (await stats_of_workers(c.sites["tokyo"]))[0]
            assert (stats.processed, stats.delegated) == (2, 0)
        finally:
            await asyncio.to_thread(device.disconnect)
            await asyncio.to_thread(device.loop_stop)
