"""The story of a record and of a result of a channel, from what stores keep. The data cluster is played by the test."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from tests.system.control import coordinator
from tests.system.test_cli import run

import nearcast
from nearcast.cluster.channels.results import group_results, messages_by_channel
from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.topic import TopicSpec
from nearcast.nats.catalog import Catalog
from nearcast.nats.stream_publisher import StreamPublisher
from nearcast.testing import until

REPORTS = DatasetSpec("reports", "id STRING NOT NULL, kind STRING", "fed.reports")
ALERTS = ChannelSpec("alerts", "SELECT r.id FROM reports r", new="reports")
SLOW = ChannelSpec("slow", "SELECT r.id FROM reports r", period=60.0, new="reports")


def messages(channel: str, key: str, *, first: int, last: int, at_us: int) -> list[tuple[str, str, bytes]]:
    """The result of one execution, as the data cluster publishes it."""
    rows = pa.table(
        {"channel": [channel], "key": [key], "row": ['{"id":"a"}'], "position": pa.array([None], pa.int64())}
    )
    return messages_by_channel(group_results(rows, last, at_us, first))[channel]


async def test_records_and_results_tell_of_each_other(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1)) as c, coordinator(c) as control:
        catalog = Catalog(control.connection, "cloud")
        await catalog.prepare()
        await catalog.add_dataset(REPORTS)
        await catalog.add_dataset(DatasetSpec("shelters", "name STRING"))
        for channel in (ALERTS, SLOW):
            await catalog.add_channel(channel)
        async with nearcast.connect(c.url("tokyo"), name="car7") as client:
            ids = [(await client.feed("reports", {"id": f"r{n}"}, timeout=30)).id for n in range(4)]
        at = int(ids[2].split(":")[2]) + 5000
        publisher = StreamPublisher(control.connection, 30)
        sent = [
            *messages("alerts", "k1", first=1, last=1, at_us=at),
            *messages("alerts", "k1", first=2, last=3, at_us=at + 1),
            *messages("alerts", "k2", first=2, last=3, at_us=at + 1),
            *messages("alerts", "k1", first=4, last=4, at_us=at + 2),
            *messages("slow", "k1", first=0, last=3, at_us=at),  # a period's number, and no records
        ]
        await publisher.publish(sent)
        url = ("--url", c.url("tokyo"))

        async def told(message_id: str) -> dict[str, Any]:
            code, out, err = await run("trace", message_id, *url, "--json")
            assert code == 0, err
            found: dict[str, Any] = json.loads(out)
            return found

        async def led() -> bool:  # the coordinator knows the cloud
            return (await run("trace", ids[2], *url))[0] == 0

        await until(led, 60)
        story = await told(ids[2])
        assert (story["topic"], story["publisher"], story["home"]) == ("fed.reports", "car7", "tokyo")
        assert [event["what"] for event in story["events"]] == [
            "stored as record 3 of reports",
            "result of channel alerts, subscription k1, of records 2 to 3, stored",
            "result of channel alerts, subscription k2, of records 2 to 3, stored",
        ]
        assert {event["where"] for event in story["events"]} == {"cloud"}
        first = await told(ids[0])
        assert first["events"][1]["what"] == "result of channel alerts, subscription k1, of record 1, stored"
        result = await told(sent[1][1])
        assert (result["id"], result["topic"]) == (sent[1][1], "chn.alerts.k1")
        assert [event["what"] for event in result["events"]] == [
            f"record 2 of reports, {ids[1]}, stored",
            f"record 3 of reports, {ids[2]}, stored",
            "stored",
        ]
        code, _, err = await run("trace", ids[0].replace("car7", "car8"), *url)
        assert (code, "nor is it a record of a dataset or a result of a channel" in err) == (2, True)
