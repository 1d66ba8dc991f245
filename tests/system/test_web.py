"""The console in a real browser, and REST, beside real sites and a real coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright
from tests.system.control import Control, coordinator
from tests.system.test_cli import NEARCAST, run

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import RunningSites, until

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
PAGES = ("topics", "moves", "plan", "channels", "datasets", "stores", "dead-letters", "sites", "settings")
LIMIT = 60.0
SCREENSHOTS = os.environ.get("NEARCAST_SCREENSHOTS", "")


class Console:
    """A running console: its address, the sites and the coordinator behind it."""

    def __init__(self, url: str, sites: RunningSites, control: Control) -> None:
        self.url, self.sites, self.control = url, sites, control

    async def rest(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        def ask() -> tuple[int, Any]:
            data = None if body is None else json.dumps(body).encode()
            given = {"content-type": "application/json", **headers}
            request = urllib.request.Request(f"{self.url}/api/v1{path}", data, given, method=method)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status, json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        return await asyncio.to_thread(ask)


@contextlib.asynccontextmanager
async def console(city) -> AsyncIterator[Console]:
    """Two sites with positions unknown, one processed durable topic, a coordinator that waits for approval."""
    topics = [TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1, bound_ms=200), TopicSpec("news", (), ("cloud",))]
    async with city(*topics, names=("tokyo", "osaka", "cloud"), report_seconds=0.2) as c, coordinator(c) as control:
        process = await asyncio.create_subprocess_exec(
            *NEARCAST, "web", "--port", "0", "--url", c.url("cloud"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(60):
                line = (await process.stdout.readline()).decode()
                assert line.startswith("Console: http://127.0.0.1:"), (await process.stderr.read()).decode()
            yield Console(line.split()[1], c, control)
            process.send_signal(signal.SIGINT)
            _, errors = await asyncio.wait_for(process.communicate(), 30)
            assert process.returncode == 0
            assert b"Traceback" not in errors, errors.decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@contextlib.asynccontextmanager
async def browser(width: int, dark: bool) -> AsyncIterator[Page]:
    """A page that must not complain in its console."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = await chromium.new_page(
                viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
            )
            page.set_default_timeout(60_000)
            complaints: list[str] = []
            page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            yield page
            assert complaints == []
        finally:
            await chromium.close()


async def screenshot(page: Page, name: str) -> None:
    if SCREENSHOTS:
        await page.screenshot(path=str(Path(SCREENSHOTS) / f"{name}.png"))


async def fits(page: Page) -> bool:
    return bool(await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="chromium is not installed: apt-get install chromium")
async def test_an_operator_clicks_through_all_pages(city) -> None:
    async with console(city) as web:
        for width, dark in ((1280, False), (400, True)):
            async with browser(width, dark) as page:
                await page.goto(web.url)
                await page.get_by_text("No topic is above its bound.").wait_for()
                await page.get_by_text("3 sites, 2 topics").wait_for()
                await page.locator("canvas, svg").first.wait_for()
                assert await fits(page)
                await screenshot(page, f"map-{width}")
                for name in PAGES:
                    title = name.replace("-", " ").capitalize()
                    link = page.get_by_role("navigation").get_by_role("link", name=title)
                    await link.focus()
                    await page.keyboard.press("Enter")
                    await page.get_by_role("heading", name=title).wait_for()
                    await page.wait_for_url(f"**/{name}")
                    assert await fits(page), name
                    await screenshot(page, f"{name}-{width}")


@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="chromium is not installed: apt-get install chromium")
async def test_an_operator_retries_and_drops_a_dead_letter(city) -> None:
    async with console(city) as web:
        for width, dark in ((1280, False), (400, True)):
            async with browser(width, dark) as page:
                await retry_and_drop_a_letter(page, web, width)


async def retry_and_drop_a_letter(page: Page, web: Console, width: int) -> None:
    topic = f"gps.car{width}"
    async with nearcast.connect(web.sites.url("tokyo")) as client:
        await client.publish(topic, {"do": "raise"})
    await page.goto(f"{web.url}/dead-letters")
    rows = page.get_by_role("row").filter(has_text="ValueError: on purpose").filter(has_text=topic)

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
        return await rows.filter(has=page.get_by_role("cell", name="2", exact=True)).count() > 0

    await until(listed_again, LIMIT)
    if not await rows.first.get_by_role("checkbox").is_checked():
        await rows.first.get_by_role("checkbox").click()
    await page.get_by_role("button", name="Drop selected").click()
    await page.get_by_text("1 dropped.").wait_for()
    assert await web.rest("GET", f"/dead-letters?topic={topic}") == (200, [])
    await rows.first.wait_for(state="detached")


async def test_rest(city) -> None:
    async with console(city) as web:
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
        code, said = await web.rest("POST", "/topics/gps.*/move", {"to": ["osaka"]}, origin="http://evil.example")
        assert (code, await web.control.members("gps.*")) == (403, ["tokyo/worker-0"])
        assert (await web.rest("GET", "/sites", host="evil.example"))[0] == 400
        assert (await web.rest("POST", "/topics/gps.*/move", {"to": ["osaka"]}))[1]["outcome"] == "done"
        events = await asyncio.to_thread(read_text, f"{web.url}/api/v1/events?limit=2")
        assert events.count("event: state\n") == 2
        assert json.loads(events.split("data: ")[2])["topics"][0]["members"] == ["osaka/worker-0"]
        code, out, _ = await run("plan", "show", "--json", "--url", web.sites.url("cloud"))
        assert code == 0
        assert (await run("plan", "apply", "--id", json.loads(out)["id"], "--url", web.sites.url("cloud")))[0] == 0
        assert (await web.rest("PUT", "/announcement", {"text": "Act 1"}))[0] == 204


def read_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


async def test_only_loopback_is_served() -> None:
    code, _, err = await run("web", "--host", "0.0.0.0")
    assert code == 2
    assert "--host is '0.0.0.0'; allowed: a loopback address, because there is no login yet" in err
