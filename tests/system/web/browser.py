"""Pages of the console in a real browser."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
NEEDS_CHROMIUM = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason="chromium is not installed: apt-get install chromium"
)
VIEWS = ((1280, False), (400, True))  # width in pixels, and whether it is dark
_SCREENSHOTS = os.environ.get("NEARCAST_SCREENSHOTS", "")
_ACTION_LIMIT_MS = 60_000


@contextlib.asynccontextmanager
async def opened(chromium: Browser, width: int, dark: bool, expected: tuple[str, ...] = ()) -> AsyncIterator[Page]:
    """A page of its own profile, which does not know the deployment's authority. It must not complain in its console.

    expected: complaints that are what a test is about.
    """
    context = await chromium.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", ignore_https_errors=True
    )
    page = await context.new_page()
    page.set_default_timeout(_ACTION_LIMIT_MS)
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        yield page
        unexpected = [text for text in complaints if not any(part in text for part in expected)]
        assert not unexpected, unexpected
    finally:
        await context.close()


async def screenshot(page: Page, name: str) -> None:
    """Kept where NEARCAST_SCREENSHOTS says, to be looked at."""
    if _SCREENSHOTS:
        await page.screenshot(path=str(Path(_SCREENSHOTS) / f"{name}.png"), full_page=True)


async def fits(page: Page) -> bool:
    """Whether nothing is wider than the window."""
    return bool(await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))
