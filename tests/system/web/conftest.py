"""One console for all tests here: real sites, a coordinator that waits for approval, and a browser."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright
from tests.system.conftest import PROCESSORS, nothing_left_behind
from tests.system.control import Control, coordinator
from tests.system.web.browser import CHROMIUM
from tests.system.web.console_process import console_process
from tests.system.web.secured import SecuredConsole, running_secured_console

from nearcast.domain.topic import TopicSpec
from nearcast.testing import RunningSites, sites


class Console:
    """A running console: its address, the sites and the coordinator behind it."""

    def __init__(self, url: str, running: RunningSites, control: Control) -> None:
        self.url, self.sites, self.control = url, running, control

    async def rest(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        def ask() -> tuple[int, Any]:
            data = None if body is None else json.dumps(body).encode()
            given = {"content-type": "application/json", **headers}
            request = urllib.request.Request(f"{self.url}/api/v1{path}", data, given, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        return await asyncio.to_thread(ask)

    async def text(self, path: str) -> str:
        def read() -> str:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(read)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """All tests share a console that opens and closes connections all the time: see the next fixture."""


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind_by_all() -> Iterator[None]:
    with nothing_left_behind():
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def console(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    """Three sites, one processed durable topic; no lease is lost on a busy machine."""
    folder = tmp_path_factory.mktemp("console")
    (folder / "city_processors.py").write_text(PROCESSORS)
    topics = [TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1, bound_ms=200), TopicSpec("news", (), ("cloud",))]
    patient = {"lease": 6.0, "site_lost_after": 60.0, "client_lost_after": 60.0}
    async with (
        sites(
            *topics, names=("tokyo", "osaka", "cloud"), report_seconds=0.2, processors=["city_processors"],
            search_path=[str(folder)], folder=folder,
        ) as running,
        coordinator(running, **patient) as control,
        console_process("--url", running.url("cloud")) as said,
    ):  # fmt: skip
        yield Console(said[0].split()[1], running, control)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured_console(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredConsole]:
    """A console with login and TLS, beside a secured deployment."""
    async with running_secured_console(tmp_path_factory.mktemp("secured")) as console:
        yield console


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()
