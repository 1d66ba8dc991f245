"""The console in a real browser, beside real sites and a real coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page
from tests.system.web.browser import NEEDS_CHROMIUM, VIEWS, fits, opened, screenshot
from tests.system.web.conftest import Console

import nearcast
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import until
from nearcast.web.pages.frame import PAGES
from nearcast.web.panel_history import PANELS

LIMIT = 60.0
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("console"),
    NEEDS_CHROMIUM,
]


async def test_an_operator_clicks_through_all_pages(console: Console, chromium: Browser) -> None:
    for width, dark in itertools.product((1280, 400), (False, True)):
        async with opened(chromium, width, dark) as page:
            theme = "dark" if dark else "light"
            await page.goto(console.url)
            await page.get_by_text("No topic is above its bound.").wait_for()
            await page.get_by_text("3 sites, 2 topics").wait_for()
            await page.locator("canvas, svg").first.wait_for()
            assert await fits(page)
            for path, title in PAGES.items():
                link = page.get_by_role("navigation").get_by_role("link", name=title, exact=True)
                await link.focus()
                await page.keyboard.press("Enter")
                await page.get_by_role("heading", name=title, exact=True).wait_for()
                await page.wait_for_url(f"**{path}")
                assert await fits(page), title
                await screenshot(page, f"{title.lower().replace(' ', '-')}-{width}-{theme}")


async def test_the_dashboard_draws_what_happens(console: Console, chromium: Browser) -> None:
    async with traffic(console.sites.url("cloud")):
        for width, dark in itertools.product((1280, 400), (False, True)):
            async with opened(chromium, width, dark) as page:
                await page.goto(f"{console.url}/dashboard")
                for panel in PANELS:
                    await page.get_by_role("heading", name=panel.title, exact=True).wait_for()
                leading = page.get_by_role("group").filter(has_text="Leading coordinators")
                await leading.get_by_text("1", exact=True).wait_for()
                # A chart that has something to show is there, and tells its present values to readers of screens.
                for title in ("Messages sent by brokers", "Connections", "Processed"):
                    await page.get_by_role("img", name=re.compile(rf"^{title}: .*(cloud|tokyo) \d")).wait_for()
                assert await fits(page)
                await screenshot(page, f"dashboard-full-{width}-{'dark' if dark else 'light'}")


async def test_an_operator_retries_and_drops_a_dead_letter(console: Console, chromium: Browser) -> None:
    for width, dark in VIEWS:
        async with opened(chromium, width, dark) as page:
            await retry_and_drop_a_letter(page, console, width)


async def retry_and_drop_a_letter(page: Page, web: Console, width: int) -> None:
    topic = f"gps.car{width}"
    async with nearcast.connect(web.sites.url("tokyo")) as client:
        await client.publish(topic, {"do": "raise"})
    await page.goto(f"{web.url}/dead-letters")
    rows = page.locator("tr, .q-table__grid-item")  # on a phone a row is a card
    rows = rows.filter(has_text="ValueError: on purpose").filter(has_text=topic)

    async def listed() -> bool:  # it is given up a moment after it was published
        await page.get_by_role("button", name="Look").click()
        return await rows.count() > 0

    await until(listed, LIMIT)
    await rows.first.get_by_role("checkbox").click()
    await page.get_by_role("button", name="Look").click()  # what is selected stays selected
    await screenshot(page, f"dead-letter-{width}")
    await page.get_by_role("button", name="Retry selected").click()
    await page.get_by_text("1 given to their processors again.").wait_for()

    async def tried_twice() -> bool:
        _, letters = await web.rest("GET", f"/dead-letters?topic={topic}")
        return [letter["attempts"] for letter in letters] == [2]

    await until(tried_twice, LIMIT)

    async def listed_again() -> bool:
        await page.get_by_role("button", name="Look").click()
        return await rows.filter(has=page.get_by_text("2", exact=True)).count() > 0

    await until(listed_again, LIMIT)
    if not await rows.first.get_by_role("checkbox").is_checked():
        await rows.first.get_by_role("checkbox").click()
    await page.get_by_role("button", name="Drop selected").click()
    await page.get_by_text("1 dropped.").wait_for()
    assert await web.rest("GET", f"/dead-letters?topic={topic}") == (200, [])
    await rows.first.wait_for(state="detached")


async def test_what_an_operator_approves_is_what_is_executed(console: Console, chromium: Browser) -> None:
    async with traffic(console.sites.url("cloud")):
        for width, dark in VIEWS:
            async with opened(chromium, width, dark) as page:
                await approve_a_plan(page, console, width)


@contextlib.asynccontextmanager
async def traffic(url: str) -> AsyncIterator[None]:
    """A topic that is used by a registered client, which reports it: only such a one is worth moving."""

    async def publish() -> None:
        async with nearcast.connect(coordinator=url, report_seconds=0.2) as client:
            while True:
                await client.publish("gps.van", {"n": 1})
                await asyncio.sleep(0.02)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        await cancel_and_wait(task)


async def approve_a_plan(page: Page, web: Console, width: int) -> None:
    here = (await web.control.members("gps.*"))[0].partition("/")[0]
    for name, site in web.sites.sites.items():  # whatever else this machine does
        site.agent.measurement.utilisation = {"cpu": 0.95 if name == here else 0.1, "memory": 0.1, "network": 0.1}
    await page.goto(f"{web.url}/plan")
    propose = page.get_by_role("button", name="Propose a plan")
    move = page.get_by_role("checkbox", name=f"Topic gps.* is to move from {here} to")
    try:

        async def proposed() -> bool:  # the next report says that the site is overloaded
            await propose.dblclick()  # a second click does not show a second plan
            await page.get_by_text("Nothing to move.").or_(move).wait_for()
            return await move.count() > 0

        await until(proposed, LIMIT)
        await screenshot(page, f"proposed-{width}")
        assert await fits(page)
        shown = (await page.get_by_text("valid for").inner_text()).split()[1].rstrip(",")
        assert (await web.control.members("gps.*"))[0].startswith(f"{here}/"), "a proposal changes nothing"

        await move.click()  # refused
        await page.get_by_role("button", name="Execute approved moves").click()
        await page.get_by_text("Not approved.").wait_for()
        assert (await web.control.members("gps.*"))[0].startswith(f"{here}/"), "a refused move is not made"
        assert "there is no plan" in (await web.rest("POST", f"/plans/{shown}/execute", {}))[1]

        await until(proposed, LIMIT)
        said = (
            await move.get_attribute("aria-label") or await page.get_by_text(f"is to move from {here} to").inner_text()
        )
        (target,) = {site for site in web.sites.sites if f" to {site}, because" in said}
        await page.get_by_role("button", name="Execute approved moves").click()
        await page.get_by_text("What became of it").wait_for()
        await page.get_by_text(f"Topic gps.*: {here}/worker-0 -> {target}/worker-0. Done.").wait_for()
        assert await web.control.members("gps.*") == [f"{target}/worker-0"]
    finally:
        for site in web.sites.sites.values():
            site.agent.measurement.utilisation = {}
    await page.get_by_role("link", name="Moves").click()
    await page.get_by_text("overloaded").first.wait_for()
    await screenshot(page, f"moved-{width}")
