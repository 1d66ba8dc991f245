"""A site's agent with real servers: its services are those of NATS micro, and it may be restarted."""

from __future__ import annotations

import asyncio
import json

import pytest

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.rpc import call
from nearcast.protocol.services import StoresAnswer, TopicsAnswer, TopicsRequest
from nearcast.testing import until


async def test_services_are_discoverable_and_refuse_wrong_requests_with_400(city):
    async with city(TopicSpec("gps", ("tokyo",)), names=("tokyo", "cloud")) as c:
        connection = await open_connection([c.url("tokyo")], name="test")
        inbox = connection.new_inbox()
        answers = await connection.subscribe(inbox)
        await connection.publish("$SRV.INFO", reply=inbox)
        found: dict[str, set[str]] = {}
        async with asyncio.timeout(60):
            while not {"nearcast-agent", "nearcast-site", "nearcast-worker"} <= found.keys():
                info = json.loads((await answers.next_msg(timeout=60)).data)
                found.setdefault(info["name"], set()).update(part["name"] for part in info["endpoints"])
        assert found["nearcast-site"] == {"start", "stop"}
        assert {"topics", "stores", "coordinates", "history-read", "channel-subscribe"} <= found["nearcast-agent"]
        with pytest.raises(nearcast.InputError, match="Expected `str`, got `int`"):
            await call(connection, subjects.topics_lookup("tokyo"), {"pattern": 3}, TopicsAnswer)
        await connection.close()


async def test_restarted_client_services_answer_once_and_advertise_again(city):
    spec = TopicSpec("log", (), ("tokyo",), 1)
    async with city(spec, names=("tokyo", "cloud")) as c:
        services = c.sites["tokyo"].agent.client_services
        await services.stop()
        connection = await open_connection([c.url("tokyo")], name="test")
        subject = subjects.topics_lookup("tokyo")
        with pytest.raises(nearcast.NearcastError, match="nobody listens there"):
            await call(connection, subject, TopicsRequest("log"), TopicsAnswer)
        await services.start()
        inbox = connection.new_inbox()
        answers = await connection.subscribe(inbox)
        await connection.publish(subject, b'{"pattern": ">"}', reply=inbox)
        assert json.loads((await answers.next_msg(timeout=60)).data)["topics"][0]["name"] == "log"
        with pytest.raises(TimeoutError):
            await answers.next_msg(timeout=0.3)

        async def advertised() -> bool:
            request = TopicsRequest("log")
            return (await call(connection, subjects.history("cloud", "find"), request, StoresAnswer)).stores == [
                "tokyo"
            ]

        await until(advertised)
        await connection.close()
