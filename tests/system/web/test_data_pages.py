"""Channels, datasets, stores, users and audit in a real browser. The data cluster is played by the test."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page
from tests.system.web.browser import NEEDS_CHROMIUM, VIEWS, fits, opened, screenshot
from tests.system.web.conftest import Console

import nearcast
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.rpc import Endpoint, Server
from nearcast.protocol.data_cluster import (
    AdHocAnswer,
    AdHocQuery,
    ChannelCheck,
    ChannelReplay,
    ChannelTrial,
    ColumnsCheck,
    DataClusterState,
    DatasetLoad,
    DatasetState,
    ProducerState,
    QuarantinedRecord,
    QuarantineRequest,
    ReplayAnswer,
)

REPORTS = DatasetSpec("reports", "id STRING NOT NULL, kind STRING", "fed.reports", keep_seconds=3600.0)
ALERTS = ChannelSpec("alerts", "SELECT r.id FROM reports r WHERE r.kind = :kind", (Parameter("kind", "string"),))
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("console"),
    NEEDS_CHROMIUM,
]


class PlayedCluster:
    """Answers as a data cluster would; it gets 50 records a second."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def state(self, request: None) -> DataClusterState:
        rows = round(50 * (time.monotonic() - self._began))
        producer = ProducerState("reports", rows, 1, rows // 2, 9, 3, 0.125, "")
        return DataClusterState([producer], [DatasetState("reports", 4711, time.time(), 1)], {"alerts": 12})

    async def quarantine(self, request: QuarantineRequest) -> list[QuarantinedRecord]:
        assert request.dataset == "reports"
        return [QuarantinedRecord(8, time.time(), "p:1", "field id is missing", '{"kind": "fire"}', 0)]

    async def query(self, request: AdHocQuery) -> AdHocAnswer:
        if "people" in request.query:
            raise InputError("there is no dataset 'people'; there are: reports")
        return AdHocAnswer(["kind", "n"], [["fire", "20"], ["flood", None]], True, 0.5)

    async def check_dataset(self, spec: DatasetSpec) -> str:
        if "NOTHING" in spec.schema:
            raise InputError(f"dataset {spec.name}: the schema is not understood")
        return ""

    async def check_columns(self, request: ColumnsCheck) -> str:
        return f"{request.dataset.schema}, {request.columns}"

    async def check_channel(self, request: ChannelCheck) -> str:
        assert "reports" in {spec.name for spec in request.datasets}
        return "reports"

    async def explain(self, request: ChannelCheck) -> str:
        return f"the plan of {request.channel.name}"

    async def try_out(self, request: ChannelTrial) -> list[dict[str, Any]]:
        (file,) = request.records
        assert (file.dataset, file.name) == ("reports", "reports.jsonl")
        return [json.loads(line) | request.values for line in file.content.splitlines()]

    async def replay(self, request: ChannelReplay) -> ReplayAnswer:
        return ReplayAnswer([json.dumps({"since": request.since, "publish": request.publish})], 7)

    async def backfill(self, request: DatasetLoad) -> int:
        assert (request.dataset.name, request.file.name) == ("calls", "calls.jsonl")
        return len(request.file.content.splitlines())

    async def load(self, request: DatasetLoad) -> int:
        assert request.dataset.version == 1
        return len(request.file.content.splitlines())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def data_console(console: Console) -> AsyncIterator[Console]:
    connection, played = console.control.connection, PlayedCluster()
    catalog = Catalog(connection, "cloud")
    await catalog.prepare()
    await catalog.add_dataset(REPORTS)
    await catalog.add_channel(ALERTS)
    await catalog.note_fault("alerts", "k1", "division by zero")
    handlers: dict[str, tuple[Any, Any]] = {
        "state": (None, played.state),
        "quarantine": (QuarantineRequest, played.quarantine),
        "query": (AdHocQuery, played.query),
        "check-dataset": (DatasetSpec, played.check_dataset),
        "check-columns": (ColumnsCheck, played.check_columns),
        "check-channel": (ChannelCheck, played.check_channel),
        "explain-channel": (ChannelCheck, played.explain),
        "test-channel": (ChannelTrial, played.try_out),
        "replay-channel": (ChannelReplay, played.replay),
        "load-dataset": (DatasetLoad, played.load),
        "backfill-dataset": (DatasetLoad, played.backfill),
    }
    endpoints = [Endpoint(verb, subjects.data_cluster(verb), *handler) for verb, handler in handlers.items()]
    server = Server(connection, endpoints)
    await server.start()
    try:
        yield console
    finally:
        await server.stop()
        await catalog.remove_channel("alerts")
        await catalog.remove_dataset("reports")


async def test_datasets_quarantine_and_a_query(data_console: Console, chromium: Browser) -> None:
    for width, dark in VIEWS:
        async with opened(chromium, width, dark) as page:
            await look_into_datasets(page, data_console, width)


async def look_into_datasets(page: Page, web: Console, width: int) -> None:
    await page.goto(f"{web.url}/datasets")
    await page.get_by_text("4711").wait_for()
    await page.get_by_role("button", name="Show refused records").click()
    await page.get_by_text("field id is missing").wait_for()
    sql = page.get_by_label("SQL")
    await sql.fill("SELECT * FROM people")
    await page.get_by_role("button", name="Run").click()
    await page.get_by_text("there is no dataset 'people'; there are: reports").wait_for()
    await sql.fill("SELECT kind, count(*) AS n FROM reports GROUP BY kind")
    await page.get_by_role("button", name="Run").click()
    await page.get_by_text("2 rows and more in 0.50 s.").wait_for()
    await page.get_by_text("flood").wait_for()
    assert await fits(page)
    await screenshot(page, f"datasets-full-{width}")


async def test_channels_show_their_work(data_console: Console, chromium: Browser) -> None:
    for width, dark in VIEWS:
        async with opened(chromium, width, dark) as page:
            await page.goto(f"{data_console.url}/channels")
            await page.get_by_text("SELECT r.id FROM reports r").wait_for()
            await page.get_by_text("kind:string").wait_for()
            await page.get_by_text("subscriptions with faults: 1; nearcast channel faults alerts").wait_for()
            await page.get_by_text("0.125").wait_for()
            assert await fits(page)
            await screenshot(page, f"channels-full-{width}")


async def test_stores_topics_users_and_audit(data_console: Console, chromium: Browser) -> None:
    web = data_console
    async with nearcast.connect(coordinator=web.sites.url("cloud"), name="van7", report_seconds=0.2) as client:
        await client.publish("gps.van7", {"n": 1})
        await web.rest("POST", "/topics", {"name": "audited", "replicas": ["osaka"]})
        await web.rest("DELETE", "/topics/audited")
        for width, dark in VIEWS:
            async with opened(chromium, width, dark) as page:
                await page.goto(f"{web.url}/stores")
                await page.get_by_role("heading", name="Copies of topics").wait_for()
                await page.get_by_text("gps.*").nth(1).wait_for()
                await screenshot(page, f"stores-full-{width}")
                await page.goto(f"{web.url}/topics")
                await page.get_by_role("combobox", name="Topic").click()
                await page.get_by_role("option", name="gps.*").click()
                await page.get_by_text("It was not moved").or_(page.get_by_text("gps.*").nth(2)).first.wait_for()
                await screenshot(page, f"topics-full-{width}")
                await page.goto(f"{web.url}/users")
                await page.get_by_text("This console has no login").wait_for()
                await page.get_by_text("van7").wait_for()
                await screenshot(page, f"users-full-{width}")
                await page.goto(f"{web.url}/audit")
                await page.get_by_text("topic rm").first.wait_for()
                await page.get_by_label("Contains").fill("topic add")
                await page.get_by_text("topic rm").first.wait_for(state="detached")
                await page.get_by_text("audited").first.wait_for()
                assert await fits(page)
                await screenshot(page, f"audit-full-{width}")
                await page.goto(f"{web.url}/settings")
                await page.get_by_text("site_lost_after").wait_for()
                await screenshot(page, f"settings-full-{width}")


async def test_the_same_by_rest(data_console: Console) -> None:
    web = data_console
    assert (await web.rest("GET", "/datasets/reports/quarantine"))[1][0]["reason"] == "field id is missing"
    code, found = await web.rest("POST", "/query", {"query": "SELECT 1 FROM reports", "limit": 5})
    assert (code, found["columns"], found["more"]) == (200, ["kind", "n"], True)
    assert (await web.rest("POST", "/query", {"query": "SELECT * FROM people"}))[0] == 400
    assert (await web.rest("GET", "/cluster"))[1]["subscriptions"] == {"alerts": 12}
    assert {row["site"] for row in (await web.rest("GET", "/stores"))[1]} >= {"cloud"}
    assert (await web.rest("GET", "/settings"))[1]["lease"] == 6.0
    assert (await web.rest("GET", "/audit"))[0] == 200


async def test_datasets_by_rest(data_console: Console) -> None:
    web = data_console
    calls = {"name": "calls", "schema": "id STRING, at TIMESTAMP", "source": "fed.calls", "time": "at"}
    code, found = await web.rest("POST", "/datasets", calls)
    assert (code, found["source"], found["keep_seconds"]) == (201, "fed.calls", None)
    assert found["created"] > 1.6e15
    code, said = await web.rest("POST", "/datasets", calls)
    assert (code, "dataset 'calls' exists already" in said) == (400, True)
    for wrong, reason in (
        ({"schema": "id NOTHING"}, "the schema is not understood"),
        ({"source": "pub.nobody.has.this"}, "nobody.has.this"),
        ({"source": "elsewhere"}, "source is 'elsewhere'; allowed: fed.other or pub.<topic>"),
        ({"key": "id", "source": ""}, "dataset other is static"),
        ({"name": "no good name"}, "small letters, digits and _ are allowed"),
    ):
        code, said = await web.rest("POST", "/datasets", {"name": "other", "schema": "id STRING", **wrong})
        assert (code, reason in said) == (400, True), said
    assert (await web.rest("POST", "/datasets", {"name": "other", "schema": "id STRING", "colour": 1}))[0] == 400
    assert (await web.rest("GET", "/datasets/calls"))[1]["time"] == "at"
    assert {row["name"] for row in (await web.rest("GET", "/datasets"))[1]} == {"calls", "reports"}
    code, found = await web.rest("POST", "/datasets/calls/columns", {"columns": "note STRING"})
    assert (code, found["schema"]) == (200, "id STRING, at TIMESTAMP, note STRING")
    assert (await web.rest("GET", "/datasets/calls"))[1] == found
    body = {"records": [{"id": "a"}, {"id": "b"}]}
    assert await web.rest("POST", "/datasets/calls/backfill", body) == (201, {"name": "calls", "rows": 2})
    assert (await web.rest("GET", "/datasets/calls"))[1] == found | {"version": 1}  # the data cluster opens it again
    assert await web.rest("POST", "/datasets/calls/records", body) == (201, {"name": "calls", "records": 2})
    assert (await web.rest("POST", "/datasets", {"name": "shelters", "schema": "name STRING"}))[0] == 201
    body = {"records": [{"name": "Harbour School"}, {"name": "Town Hall"}]}
    assert (await web.rest("PUT", "/datasets/shelters/records", body)) == (200, {"name": "shelters", "rows": 2})
    assert (await web.rest("GET", "/datasets/shelters"))[1]["version"] == 1
    code, said = await web.rest("PUT", "/datasets/shelters/records", {"records": [{"name": "x" * (1 << 20)}]})
    assert (code, "what the broker takes" in said) == (400, True)
    code, said = await web.rest("PUT", "/datasets/shelters/records", {"records": [{"name": "\ud800"}]})
    assert (code, "a record is not as JSON has it" in said) == (400, True)
    for name in ("calls", "shelters"):
        assert (await web.rest("DELETE", f"/datasets/{name}"))[0] == 204
    code, said = await web.rest("DELETE", "/datasets/reports")
    assert (code, "'reports' is read by channel alerts" in said) == (400, True)
    for path in ("/datasets/calls", "/datasets/%2A", "/datasets/no%20such"):
        assert [(await web.rest(method, path))[0] for method in ("GET", "DELETE")] == [400, 400]
    done = [(entry["action"], entry["what"]) for entry in (await web.rest("GET", "/audit"))[1]]
    verbs = ("dataset add", "dataset alter", "dataset backfill", "dataset rm")
    assert [(verb, "calls") for verb in verbs] == [pair for pair in done if pair[1] == "calls"]
    assert ("dataset load", "shelters") in done


async def test_channels_by_rest(data_console: Console) -> None:
    web = data_console
    query = "SELECT r.id FROM reports r WHERE r.kind = :kind"
    near = {"name": "near", "query": query, "parameters": [{"name": "kind", "type": "string"}]}
    code, found = await web.rest("POST", "/channels", near)
    assert (code, found["new"], found["period"]) == (201, "reports", None)
    assert (await web.rest("GET", "/channels/near"))[1] == found
    assert [row["name"] for row in (await web.rest("GET", "/channels"))[1]] == ["alerts", "near"]
    for wrong, reason in (
        ({"parameters": [{"name": "kind", "type": "shape"}]}, "type is 'shape'; allowed: string"),
        ({"period": 0.01}, "period is 0.01; 0.1 to 86400 seconds are allowed"),
        ({}, "channel 'near' exists already"),
    ):
        code, said = await web.rest("POST", "/channels", near | wrong)
        assert (code, reason in said) == (400, True), said
    assert (await web.rest("GET", "/channels/near/explanation"))[1]["explanation"] == "the plan of near"
    trial = {"records": {"reports": [{"id": "a"}]}, "values": {"kind": "fire"}}
    assert await web.rest("POST", "/channels/near/test", trial) == (200, [{"id": "a", "kind": "fire"}])
    code, found = await web.rest("POST", "/channels/near/replay", {"since": 12, "publish": True})
    assert (code, found) == (200, {"count": 7, "results": [{"since": 12, "publish": True}]})
    faults = [{"subscription": "k1", "reason": "division by zero"}]
    assert await web.rest("GET", "/channels/alerts/faults") == (200, faults)
    assert await web.rest("GET", "/channels/near/faults") == (200, [])
    assert await web.rest("GET", "/channels/near/subscriptions") == (200, [])
    assert (await web.rest("DELETE", "/channels/near"))[0] == 204
    for path in ("/channels/near", "/channels/near/explanation", "/channels/near/faults"):
        code, said = await web.rest("GET", path)
        assert (code, "there is no channel 'near'; there are: alerts" in said) == (400, True)
    done = [entry["action"] for entry in (await web.rest("GET", "/audit"))[1] if entry["what"] == "near"]
    assert done == ["channel add", "channel replay", "channel rm"]
