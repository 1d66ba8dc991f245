"""REST without a deployment: what is wrong with a request is one sentence."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from nearcast.web.live import Live
from nearcast.web.metrics import WebMetrics
from nearcast.web.operations import Operations
from nearcast.web.rest import add_rest
from nearcast.web.users import current_user


@pytest.fixture(scope="module")
def rest() -> FastAPI:
    app = FastAPI(openapi_url="/api/v1/openapi.json")
    operations = Operations(cast(Any, None))
    live = Live(operations)
    add_rest(app, operations, live, WebMetrics(live))
    app.dependency_overrides[current_user] = lambda: None
    app.mount("/", FastAPI())  # as the console's pages are
    return app


async def ask(app: FastAPI, method: str, path: str, body: bytes | None = None) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        headers = {"content-type": "application/json"}
        return await client.request(method, f"/api/v1{path}", content=body, headers=headers)


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "detail"),
    [
        ("POST", "/topics/gps/move", b"{}", 400, "body: to: Field required"),
        ("POST", "/topics/gps/move", b"{", 400, "body: JSON decode error"),
        ("POST", "/topics", b'{"name": "x", "quorum": -1}', 400,
         "body: quorum: Input should be greater than or equal to 0 (it is -1)"),
        ("POST", "/topics", b'{"name": "x", "colour": 1}', 400,
         "body: colour: Extra inputs are not permitted (it is 1)"),
        ("GET", "/events?limit=many", None, 400,
         "query: limit: Input should be a valid integer, unable to parse string as an integer (it is 'many')"),
        ("GET", "/dead-letters?since=yesterday", None, 400,
         "query: since: Value error, allowed: seconds since 1970, a time such as 2026-05-01T12:00Z, a span such as 15m"
         " (it is 'yesterday')"),
        ("GET", "/topics/gps/history?until=-1", None, 400,
         "query: until: Input should be greater than or equal to 0 (it is -1.0)"),
        ("GET", "/nothing/here", None, 404, "there is no /api/v1/nothing/here; /api/v1/openapi.json has all paths"),
        ("PATCH", "/topics/gps", None, 405, "/api/v1/topics/gps: method is PATCH; allowed: GET, DELETE"),
        ("ODD", "/sites", None, 405, "/api/v1/sites: method is ODD; allowed: GET"),
    ],
)  # fmt: skip
async def test_a_mistake_is_one_sentence(
    rest: FastAPI, method: str, path: str, body: bytes | None, code: int, detail: str
) -> None:
    answer = await ask(rest, method, path, body)
    assert (answer.status_code, answer.json()) == (code, {"detail": detail})


async def test_times_are_what_the_command_line_takes(rest: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only seconds since 1970 were taken."""
    asked: list[tuple[float | None, float | None]] = []

    async def find(self: Operations, topic: str, ids: object, reason: str, *times: float | None) -> list[Any]:
        asked.append((times[0], times[1]))
        return []

    monkeypatch.setattr(Operations, "dead_letters", find)
    for times in ("since=15.5&until=2026-05-01T12:00Z", "since=2026-05-01T14:00%2B02:00", "since=2h&until=1h", ""):
        assert (await ask(rest, "GET", f"/dead-letters?{times}")).status_code == 200
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp()
    (since, until) = asked[2]
    assert asked[:2] == [(15.5, noon), (noon, None)]
    assert asked[3] == (None, None)
    assert since is not None
    assert until is not None
    assert until - since == pytest.approx(3600, abs=60)  # both before the moment at which they were read


async def test_the_description_says_400_for_mistakes(rest: FastAPI) -> None:
    described = (await ask(rest, "GET", "/openapi.json")).json()
    operations = [one for methods in described["paths"].values() for one in methods.values()]
    assert all("400" in one["responses"] and "422" not in one["responses"] for one in operations)
    assert "ValidationError" not in str(described)
