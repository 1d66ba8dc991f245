"""No black holes: a site that has no processor for a topic is not to manage it, and does so visibly if it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.system.control import coordinator

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import InputError
from nearcast.testing import sites, until

ONLY_GPS = """
from nearcast import processor

@processor("gps")
def echo(message, spool):
    yield message.data
"""


async def test_a_topic_without_a_processor_is_refused_shown_and_found(tmp_path: Path) -> None:
    """Before, `topic add` took it, nothing ran, and its publications vanished; the next start of the site failed."""
    (tmp_path / "only_gps.py").write_text(ONLY_GPS)
    topics = [TopicSpec("gps", ("tokyo",))]
    options = {"names": ("tokyo", "cloud"), "processors": ["only_gps"], "search_path": [str(tmp_path)]}
    async with sites(*topics, folder=tmp_path, report_seconds=0.2, **options) as c, coordinator(c) as control:
        await until(lambda: control.leader.monitor.reports["tokyo"].processors == ["gps"])
        with pytest.raises(InputError, match="site tokyo has no processor for topic 'air'; its modules have: gps"):
            await control.ask("topic", "add", spec={"name": "air", "managed_by": ["tokyo"]})
        assert [(row["topic"], row["problem"]) for row in await control.ask("topic", "ls")] == [("gps", "")]

        # As a registry has it from before, or when modules were changed.
        await control.leader.registry.add_topic(TopicSpec("air", ("tokyo",)), (WorkerId("tokyo", "worker-0"),))
        rows = {row["topic"]: row["problem"] for row in await control.ask("topic", "ls")}
        assert rows == {"air": "no processor at tokyo", "gps": ""}

        async def found() -> bool:
            status = await control.ask("coordinator", "status")
            sentence = "topic air is managed by tokyo, which has no processor for it"
            return sentence in status["last_pass"].get("anomalies", [])

        await until(found)
        tokyo = c.sites["tokyo"]
        await until(lambda: any(record.spec.name == "air" for record in tokyo.agent.topic_host.records))
        await tokyo.stop()
        await tokyo.start()
        got: list[int] = []
        async with nearcast.connect(c.url("tokyo"), name="both") as client:
            await client.subscribe("gps", callback=lambda message: got.append(message.data["n"]))
            await client.publish("gps", {"n": 1})
            await until(lambda: got == [1])


async def test_a_configured_topic_without_a_processor_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "only_gps.py").write_text(ONLY_GPS)
    options = {"names": ("tokyo", "cloud"), "processors": ["only_gps"], "search_path": [str(tmp_path)]}
    with pytest.raises(nearcast.NearcastError, match="topic 'air': no processor handles it; the modules have: gps"):
        async with sites(TopicSpec("air", ("tokyo",)), folder=tmp_path, **options):
            pass
