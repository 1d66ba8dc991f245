"""One message's story, from what real stores keep."""

from __future__ import annotations

import json

from tests.system.test_cli import run

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until

GPS = TopicSpec("gps.*", ("tokyo",), ("tokyo", "osaka"), 2)


async def test_the_story_of_a_message_is_told_from_its_id(city) -> None:
    async with city(GPS, TopicSpec("plain"), names=("tokyo", "osaka")) as c:
        async with nearcast.connect(c.url("osaka"), name="car7") as client:
            first = await client.publish("gps.car7", {"n": 1})
            bad = await client.publish("gps.car7", {"do": "raise"})
        url = ("--url", c.url("osaka"))
        told: dict[str, object] = {}

        async def whole(message_id: str, *wanted: str) -> bool:  # marks are written some times a second
            nonlocal told
            code, out, err = await run("trace", message_id, *url, "--json")
            assert code == 0, err
            told = json.loads(out)
            events = {(event["what"], event["where"]) for event in told["events"]}  # type: ignore[attr-defined]
            return all((what, store) in events for what in wanted for store in ("tokyo", "osaka"))

        processed = "processed by tokyo/worker-0, marked"
        await until(lambda: whole(f"{first.id};0", "stored", "notification 0, stored", processed), 60)
        assert (told["topic"], told["publisher"], told["home"]) == ("gps.car7", "car7", "osaka")
        assert told["not_read"] == []
        await until(lambda: whole(bad.id, "stored", "dead letter (ValueError: on purpose), stored"), 60)
        code, out, _ = await run("trace", first.id, *url)
        assert code == 0
        assert "processed by tokyo/worker-0, marked" in out
        code, _, err = await run("trace", first.id.replace("car7", "car8"), *url)
        assert (code, "no store has a message 'car8~" in err) == (2, True)
        assert (await run("trace", "42", *url))[0] == 2
        assert "no durable topic is within 'plain'" in (await run("trace", first.id, "--topic", "plain", *url))[2]
