"""REST and metrics of the console, beside real sites and a real coordinator."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.system.test_cli import NEARCAST, run
from tests.system.web.conftest import Console

import nearcast
from nearcast.testing import until

EXAMPLES = "3"  # of each operation
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("console")]


async def test_rest(console: Console) -> None:
    web = console
    assert [site["site"] for site in (await web.rest("GET", "/sites"))[1]] == ["cloud", "osaka", "tokyo"]
    code, said = await web.rest("POST", "/topics", {"name": "gps.car7"})
    assert (code, "overlaps 'gps.*'" in said) == (400, True)
    assert (await web.rest("POST", "/topics", {"name": "extra", "replicas": ["osaka"]}))[0] == 201
    assert (await web.rest("DELETE", "/topics/extra"))[0] == 204
    code, plan = await web.rest("POST", "/plans")
    assert (code, plan["moves"]) == (201, [])
    path = f"/plans/{plan['id']}/execute"
    assert "it has no move 3" in (await web.rest("POST", path, {"moves": [3]}))[1]
    assert (await web.rest("POST", path, {"moves": []}))[0] == 200
    assert "there is no plan" in (await web.rest("POST", path, {"moves": []}))[1]  # not a second time
    before = await web.control.members("gps.*")
    code, said = await web.rest("POST", "/topics/gps.*/move", {"to": ["osaka"]}, origin="http://evil.example")
    assert (code, await web.control.members("gps.*")) == (403, before)
    assert (await web.rest("GET", "/sites", host="evil.example"))[0] == 400
    assert (await web.rest("POST", "/topics/gps.*/move", {"to": ["osaka"]}))[1]["outcome"] == "done"
    events = await web.text("/api/v1/events?limit=2")
    assert events.count("event: state\n") == 2
    assert json.loads(events.split("data: ")[2])["topics"][0]["members"] == ["osaka/worker-0"]
    code, out, _ = await run("plan", "show", "--json", "--url", web.sites.url("cloud"))
    assert code == 0
    assert (await run("plan", "apply", "--id", json.loads(out)["id"], "--url", web.sites.url("cloud")))[0] == 0
    assert (await web.rest("PUT", "/announcement", {"text": "Act 1"}))[0] == 204


async def test_one_letter_its_story_and_the_figures_of_its_site(console: Console) -> None:
    web = console
    async with nearcast.connect(web.sites.url("tokyo"), name="car7") as client:
        sent = await client.publish("gps.car7", {"do": "raise"})
    identity = quote(sent.id, safe="")

    async def counted() -> bool:
        _, sites = await web.rest("GET", "/sites")
        return sum(site["dead_letters"] for site in sites) == 1

    await until(counted, 60)
    (listed,) = (await web.rest("GET", "/dead-letters?topic=gps.car7"))[1]
    code, letter = await web.rest("GET", f"/dead-letters/{quote(listed['id'], safe='')}")
    assert (code, letter) == (200, listed | {"payload": '{"do":"raise"}'})
    moment = datetime.fromisoformat(listed["published"]).timestamp()
    assert await web.rest("GET", f"/dead-letters?until={moment - 1}&topic=gps.car7") == (200, [])
    assert await web.rest("GET", f"/dead-letters?since={moment - 1}&until={moment + 1}") == (200, [listed])
    code, said = await web.rest("GET", "/dead-letters/no-such-id")
    assert (code, "has no dead letter with id 'no-such-id'" in said) == (400, True)
    code, story = await web.rest("GET", f"/trace/{identity}")
    assert (code, story["publisher"], story["topic"]) == (200, "car7", "gps.car7")
    assert "dead letter (ValueError: on purpose), stored" in {event["what"] for event in story["events"]}
    code, said = await web.rest("GET", "/trace/42")
    assert (code, "'42' is no id of Nearcast" in said) == (400, True)
    status = (await web.rest("GET", "/coordinator"))[1]
    assert status["passes"] > 0
    assert status["moves_ended"].get("topic, done", 0) >= 1


async def test_messages(console: Console) -> None:
    web = console
    code, sent = await web.rest("POST", "/topics/gps.rest/messages", {"data": {"n": 1, "do": "past"}})
    assert (code, sent["topic"], sent["stores"]) == (201, "gps.rest", ["tokyo"])
    (past,) = (await web.rest("GET", "/topics/gps.rest/history?publications=true"))[1]
    assert (past["id"], past["publisher"], json.loads(past["payload"])) == (sent["id"], "local", {"n": 1, "do": "past"})
    following = asyncio.create_task(web.text("/api/v1/topics/gps.*/events?limit=2"))

    async def published_until_heard() -> bool:  # a subscription is known at other sites after a moment
        await web.rest("POST", "/topics/gps.rest/messages", {"data": {"n": 2, "do": "past"}, "quorum": 1})
        return following.done()

    await until(published_until_heard, 60)
    subscribed, first, second = (await following).strip().split("\n\n")
    assert subscribed == "event: subscribed\ndata: {}"
    for event in (first, second):
        kind, identity, data = event.splitlines()
        row = json.loads(data.removeprefix("data: "))
        assert (kind, identity, row["topic"]) == ("event: message", f"id: {row['id']}", "gps.rest")
        assert json.loads(row["payload"])["n"] == 2
    code, notified = await web.rest("GET", "/topics/gps.rest/history?last=2")
    assert (code, len(notified)) == (200, 2)
    began = datetime.fromisoformat(past["published"]).timestamp()
    path = f"/topics/gps.rest/history?publications=true&until={began + 1e-3}&since={began - 1e-3}"
    assert [row["id"] for row in (await web.rest("GET", path))[1]] == [sent["id"]]
    assert (await web.rest("POST", "/topics/open/messages", {"data": "not stored"}))[1]["stores"] == []


async def test_messages_that_cannot_be(console: Console) -> None:
    web = console
    for topic, body, reason in (
        ("gps.*", {"data": 1}, "topic 'gps.*'"),
        ("gps.rest", {"data": 1, "quorum": 2}, "quorum is 2; the topic is kept by tokyo"),
        ("gps.rest", {"data": "x" * (2 << 20)}, "the broker takes at most"),
        ("gps.rest", {"data": "\ud800"}, "cannot be encoded"),
        ("gps.rest", {"data": {"kmh": math.nan}}, "kmh is nan; JSON has no NaN or infinity"),
    ):
        code, said = await web.rest("POST", f"/topics/{topic}/messages", body)
        assert (code, reason in said) == (400, True), (topic, said)
    for wrong, reason in (
        ({"payload": 1}, "body: data: Field required"),
        ({"payload": math.nan}, "body: data: Field required"),
        ({"\ud800": 1}, "body: Input should be a valid string"),
        ({"data": 1, "quorum": math.inf}, "body: quorum: "),
    ):
        code, said = await web.rest("POST", "/topics/gps.rest/messages", wrong)
        assert (code, reason in said) == (400, True), said
    assert (await web.rest("POST", "/topics", {"name": "\ud800"}))[0] == 400
    code, said = await web.rest("GET", "/topics/nobody.keeps.this/history")
    assert (code, "topic 'nobody.keeps.this' is not stored" in said) == (400, True)
    code, said = await web.rest("POST", "/datasets/nobody/records", {"records": [{}]})
    assert (code, "there is no dataset 'nobody'" in said) == (400, True), said
    assert (await web.rest("GET", "/topics/gps..rest/events"))[0] == 400
    for _ in range(12):
        assert (await web.rest("POST", "/topics/news/messages", {"data": "x" * 900_000, "quorum": 1}))[0] == 201
    assert [len(row["payload"]) for row in (await web.rest("GET", "/topics/news/history?last=2"))[1]] == [900_002] * 2
    code, said = await web.rest("GET", "/topics/news/history")
    assert (code, "have more than 8 MiB; ask for fewer" in said) == (400, True)


async def test_unknown_paths_and_wrong_methods_are_answered_as_json(console: Console) -> None:
    """The console's page for unknown addresses was the answer, and 404 for a wrong method."""
    code, said = await console.rest("GET", "/no-such-path")
    detail = "there is no /api/v1/no-such-path; /api/v1/openapi.json has all paths"
    assert (code, json.loads(said)) == (404, {"detail": detail})
    code, said = await console.rest("PATCH", "/topics/gps.*")
    assert (code, json.loads(said)) == (
        405,
        {"detail": "/api/v1/topics/gps.*: method is PATCH; allowed: GET, DELETE"},
    )


async def test_the_metrics_of_the_console(console: Console) -> None:
    await console.rest("GET", "/topics/nobody.has.this")
    await console.rest("GET", "/no-such-path")
    families = {family.name: family for family in text_string_to_metric_families(await console.text("/metrics"))}
    asked = {tuple(sample.labels.values()) for sample in families["nearcast_web_requests"].samples}
    assert ("GET", "/api/v1/topics/{name}", "400") in asked, "routes are labels, not what was asked for"
    assert ("any", "none", "404") in asked
    assert families["nearcast_web_coordinator_up"].samples[0].value == 1
    assert families["nearcast_web_event_streams"].samples[0].value == 0
    assert {"nearcast_build_info", "process_cpu_seconds", "nearcast_web_request_seconds"} <= families.keys()


async def test_no_input_fails_the_server(console: Console) -> None:
    """Schemathesis finds no answer 500. The endless stream is left out; nothing depends on how long an answer takes."""
    process = await asyncio.create_subprocess_exec(
        str(Path(NEARCAST[0]).parent / "schemathesis"), "run", f"{console.url}/api/v1/openapi.json",
        "--checks", "not_a_server_error", "--exclude-path-regex", "/events", "--max-examples", EXAMPLES,
        "--seed", "7", "--generation-deterministic", "--request-timeout", "120",
        "--phases", "fuzzing", "--suppress-health-check", "all", "--no-color",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=console.sites.folder,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-5000:]
