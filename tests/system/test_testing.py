"""What `nearcast.testing` offers users: real sites with their processors, started by one line."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.suspend import suspend

import nearcast
from nearcast.testing import TopicSpec, sites
from nearcast.testing.fixtures import nearcast_sites  # noqa: F401 - as users do in their conftest

MODULE = """
import msgspec
from nearcast import processor

class Reading(msgspec.Struct):
    speed: float

@processor("speed.*", type=Reading)
def speeding(message, spool):
    return {"speed": message.data.speed, "before": [m.data.speed for m in spool]}
"""


async def test_a_payload_of_another_type_is_a_dead_letter(nearcast_sites, tmp_path, monkeypatch) -> None:  # noqa: F811
    (tmp_path / "typed_processors.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    topic = TopicSpec("speed.*", ("edge",))
    async with (
        nearcast_sites(topic, processors=["typed_processors"]) as running,
        nearcast.connect(running.url("edge")) as client,
        client.subscribe("speed.*") as subscription,
        client.dead_letters("speed.*") as dead,
    ):
        for value in ({"speed": 40}, {"speed": "fast"}, {"speed": 60}):
            await client.publish("speed.a9", value)
        assert [(await anext(subscription)).data for _ in range(2)] == [
            {"speed": 40.0, "before": []},
            {"speed": 60.0, "before": [40.0]},
        ]
        letter = await anext(dead)
        assert letter.reason.endswith("of topic speed.a9: Expected `float`, got `str` - at `$.speed`")


async def test_sites_without_processors_leave_nothing_behind() -> None:
    async with sites(names=("edge",)) as running, nearcast.connect(running.url("edge")) as client:
        async with client.subscribe("gps") as subscription:
            await client.publish("gps", {"n": 1})
            assert (await anext(subscription)).data == {"n": 1}
        assert running.folder.name in os.listdir(running.folder.parent)
    assert running.folder.name not in os.listdir(running.folder.parent)


async def test_interest_is_settled_when_another_broker_knows_of_a_subscription_not_before() -> None:
    async with sites(names=("edge", "other")) as running:
        broker = running.sites["other"].broker
        async with (
            nearcast.connect(running.url("edge")) as client,
            nearcast.connect(running.url("other")) as publisher,
        ):
            suspend(broker.pid)  # it hears of nothing
            try:
                subscription = await client.subscribe("gps")
                settling = asyncio.create_task(running.interest_settled())
                await asyncio.sleep(0.5)
                assert not settling.done()
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            await settling
            await publisher.publish("gps", {"n": 1})
            assert (await anext(subscription)).data == {"n": 1}
