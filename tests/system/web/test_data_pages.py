"""Channels, datasets, stores, users and audit in a real browser. The data cluster is played by the test."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

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
    DataClusterState,
    DatasetState,
    ProducerState,
    QuarantinedRecord,
    QuarantineRequest,
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def data_console(console: Console) -> AsyncIterator[Console]:
    connection, played = console.control.connection, PlayedCluster()
    catalog = Catalog(connection, "cloud")
    await catalog.prepare()
    await catalog.add_dataset(REPORTS)
    await catalog.add_channel(ALERTS)
    await catalog.note_fault("alerts", "k1", "division by zero")
    server = Server(
        connection,
        [
            Endpoint("state", subjects.data_cluster("state"), None, played.state),
            Endpoint("quarantine", subjects.data_cluster("quarantine"), QuarantineRequest, played.quarantine),
            Endpoint("query", subjects.data_cluster("query"), AdHocQuery, played.query),
        ],
    )
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
