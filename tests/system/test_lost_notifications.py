"""A notification that no store got, while its mark would be stored: the publication is processed again."""

from __future__ import annotations

from pathlib import Path

from nats.js.api import StreamConfig

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.connection import Connection
from nearcast.testing import sites, until

PROCESSOR = """
from nearcast import processor

@processor("alerts", spool=5)
def enlarge(message, spool):
    return message.payload + b" " * 5000
"""
STORES = ("osaka", "cloud")
ALERTS = TopicSpec("alerts", ("tokyo",), STORES, quorum=2)


async def limit_messages(connection: Connection, size: int) -> None:
    """Stores refuse what is larger: as good as a link that swallows notifications, and lets marks pass."""
    for store in STORES:
        stream = connection.jsm(prefix=f"$JS.{store}.API", timeout=60)
        config: StreamConfig = (await stream.stream_info(subjects.stream_name("alerts"))).config
        config.max_msg_size = size
        await stream.update_stream(config)


async def test_a_notification_that_no_store_got_is_made_again_when_the_owner_has_no_store(tmp_path: Path) -> None:
    (tmp_path / "enlarging_processors.py").write_text(PROCESSOR)
    async with (
        sites(
            ALERTS,
            names=("tokyo", *STORES),
            processors=["enlarging_processors"],
            search_path=[str(tmp_path)],
            folder=tmp_path,
        ) as c,
        nearcast.connect(c.url("tokyo")) as client,
        client.subscribe("alerts") as subscription,
    ):
        await limit_messages(client.connection, 2000)
        receipt = await client.publish("alerts", b"fire")
        assert (await anext(subscription)).id == f"{receipt.id};0"
        await limit_messages(client.connection, -1)

        async def stored() -> bool:
            return [one.id async for one in client.history("alerts")] == [f"{receipt.id};0"]

        await until(stored, limit=60)
        assert subscription.pending == 0, "it was made again under the same id, and delivered once"
