"""The login in a real browser: an operator, a reader, a file that is none, and a session that is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page
from tests.system.web.browser import NEEDS_CHROMIUM, VIEWS, fits, opened, screenshot
from tests.system.web.console_process import console_process
from tests.system.web.secured import SecuredConsole

from nearcast.auth.push import push_accounts
from nearcast.web.pages.frame import PAGES

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("secured console"),
    NEEDS_CHROMIUM,
]


# The browser itself reports what is refused; that is what these tests are about.
REFUSED = ("the server responded with a status of 401", "Unexpected response code: 403")


def sent_bodies(page: Page) -> list[str]:
    """What the page posts from now on."""
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data or ""))
    return sent


async def log_in(page: Page, web: SecuredConsole, user: str) -> None:
    await page.get_by_label("Credentials file").set_input_files(web.credentials(user).path)
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_role("heading", name="Map", exact=True).wait_for()


async def test_an_operator_logs_in_and_out(secured_console: SecuredConsole, chromium: Browser) -> None:
    web = secured_console
    for width, dark in VIEWS:
        async with opened(chromium, width, dark, REFUSED) as page:
            sent = sent_bodies(page)
            await page.goto(f"{web.url}/plan")
            await page.get_by_role("heading", name="Log in").wait_for()
            assert page.url == f"{web.url}/login"
            assert await fits(page)
            await screenshot(page, f"login-{width}")
            await log_in(page, web, "ada")
            await page.get_by_text("ada, operator").wait_for()
            await page.get_by_text("2 sites").wait_for()
            assert await fits(page)
            await screenshot(page, f"logged-in-{width}")
            assert not any(web.credentials("ada").seed in body for body in sent), "the key stays in the browser"
            (cookie,) = await page.context.cookies()
            assert (cookie["name"], cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (
                "__Host-nearcast", True, True, "Strict",
            )  # fmt: skip
            await page.goto(f"{web.url}/plan")
            await page.get_by_role("button", name="Propose a plan").click()
            await page.get_by_text("Nothing to move.").wait_for()
            await page.get_by_role("button", name="Log out").click()
            await page.get_by_role("heading", name="Log in").wait_for()
            await page.goto(f"{web.url}/topics")
            await page.get_by_role("heading", name="Log in").wait_for()


async def test_files_that_let_nobody_in(secured_console: SecuredConsole, chromium: Browser, tmp_path: Path) -> None:
    web = secured_console
    odd = tmp_path / "odd.creds"
    odd.write_text("nothing")
    text = web.credentials("ada").path.read_text()
    swapped = tmp_path / "swapped.creds"
    swapped.write_text(text.replace(web.credentials("ada").seed, web.credentials("eve").seed))
    async with opened(chromium, 1280, False, REFUSED) as page:
        await page.goto(web.url)
        for file, said in (
            (odd, "This file has no credentials; allowed: a file made by"),
            (web.credentials("car8").path, "car8 has role device; allowed: operator and reader"),
            (swapped, "the broker refuses the credentials of ada"),
        ):
            await page.get_by_label("Credentials file").set_input_files(file)
            await page.get_by_role("button", name="Log in").click()
            await page.get_by_role("alert").filter(has_text=said).wait_for()
        await screenshot(page, "login-refused-1280")
        assert await page.context.cookies() == []


async def test_a_reader_sees_all_pages_and_no_button_that_changes_something(
    secured_console: SecuredConsole, chromium: Browser
) -> None:
    web = secured_console
    await web.publish("gps.worse", {"do": "raise"})
    for width, dark in VIEWS:
        async with opened(chromium, width, dark, REFUSED) as page:
            await page.goto(web.url)
            await log_in(page, web, "eve")
            await page.get_by_text("eve, reader").wait_for()
            for path, title in PAGES.items():
                await page.goto(f"{web.url}{path}")
                await page.get_by_role("heading", name=title, exact=True).wait_for()
                for name in ("Execute", "Retry", "Drop", "Move", "Add"):
                    assert await page.get_by_role("button", name=name).count() == 0, (path, name)
            await page.goto(f"{web.url}/dead-letters")
            await page.get_by_text("ValueError: on purpose").first.wait_for()
            await screenshot(page, f"reader-dead-letters-{width}")


async def test_an_open_page_of_a_revoked_user_is_closed(secured_console: SecuredConsole, chromium: Browser) -> None:
    web = secured_console
    web.auth.add_user("operator", "trudy")
    async with opened(chromium, 1280, False, REFUSED) as page:
        await page.goto(web.url)
        await log_in(page, web, "trudy")
        await page.wait_for_load_state("networkidle")  # or what is still being loaded is refused, and it complains
        web.auth.revoke("trudy", "main")
        await push_accounts(web.auth, web.url_of_broker)
        await page.get_by_role("heading", name="Log in").wait_for()
        assert page.url == f"{web.url}/login"


async def test_the_link_that_was_printed_opens_the_console(secured_console: SecuredConsole, chromium: Browser) -> None:
    web = secured_console
    async with console_process("--url", web.url_of_broker, "--link", **web.environment("ada")) as said:
        (line,) = [line for line in said if "#link=" in line]
        link = line.split()[-1]
        for width, dark in VIEWS:
            async with opened(chromium, width, dark, REFUSED) as page:
                await page.goto(f"{link}x")
                await page.get_by_role("alert").filter(has_text="not the link of this console").wait_for()
                await screenshot(page, f"login-link-refused-{width}")
                await page.goto(link)
                await page.get_by_role("heading", name="Map", exact=True).wait_for()
                await page.get_by_text("ada, operator").wait_for()
                assert "link" not in page.url
                (cookie,) = await page.context.cookies()
                assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("nearcast", True, "Strict")
                await page.get_by_role("button", name="Log out").click()
                await page.get_by_role("heading", name="Log in").wait_for()
