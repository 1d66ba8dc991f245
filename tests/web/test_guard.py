"""Where console and REST may listen, who is let in, and what a reader may do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearcast.auth.auth_folder import AuthFolder
from nearcast.errors import InputError
from nearcast.nats.identity.credentials import read_credentials
from nearcast.web.access import check_access, check_link
from nearcast.web.changes import Changes
from nearcast.web.guard import PUBLIC, Guard
from nearcast.web.login_sessions import LoginSession, LoginSessions
from nearcast.web.users import ConsoleUser, ForbiddenError


class OneSession:
    """LoginSessions of which there is one, with the secret `right`."""

    def __init__(self) -> None:
        self.session = LoginSession("right", ConsoleUser("ada", "operator", cast("Any", None), logged_in=True), 0.0)

    def find(self, secret: str) -> LoginSession | None:
        return self.session if secret == "right" and not self.session.over.is_set() else None


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the name of the user; to a websocket it accepts."""
    user = scope["state"].get("user")
    name = "public" if user is None else user.name
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": name})
        return
    await PlainTextResponse(name)(scope, receive, send)


async def _ask(who: Any, path: str = "/", kind: str = "http", **headers: str) -> list[Message]:
    """What is sent to a request or websocket, by TLS."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": f"{kind}.{'request' if kind == 'http' else 'connect'}", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    given = [(b"host", b"console"), *((name.encode(), value.encode()) for name, value in headers.items())]
    scheme = "https" if kind == "http" else "wss"
    scope = {"type": kind, "path": path, "scheme": scheme, "method": "POST", "headers": given, "state": {}, "asgi": {}}
    await Guard(_app, who)(scope, receive, send)
    return sent


async def _status(who: Any, path: str = "/", **headers: str) -> int:
    return int((await _ask(who, path, **headers))[0]["status"])


async def test_without_a_session_there_is_only_the_way_to_one() -> None:
    sessions = OneSession()
    for path in PUBLIC:
        assert (await _ask(sessions, path))[1]["body"] == b"public"
    start, _ = await _ask(sessions)
    assert start["status"] == 401
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    start, _ = await _ask(sessions, accept="text/html")
    assert start["status"] == 303
    assert (b"location", b"/login") in start["headers"]
    (closed,) = await _ask(sessions, kind="websocket")
    assert (closed["type"], closed["code"]) == ("websocket.close", 4401)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer right"},
        {"cookie": "__Host-nearcast=right"},
        {"cookie": "a=b; __Host-nearcast=right", "origin": "https://console"},
    ],
)
async def test_who_has_a_session_is_its_user(headers: dict[str, str]) -> None:
    start, body = await _ask(OneSession(), **headers)
    assert body["body"] == b"ada"
    assert (b"content-security-policy", b"frame-ancestors 'none'") in start["headers"]
    accepted, told = await _ask(OneSession(), kind="websocket", **headers)
    assert (accepted["type"], told["text"]) == ("websocket.accept", "ada")


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": "Basic right"},
        {"cookie": "__Host-nearcast=wrong"},
        {"cookie": "nearcast=right"},  # a cookie that could be set without TLS
        {"cookie": "\x01;;=,"},
    ],
)
async def test_what_is_no_session_is_refused(headers: dict[str, str]) -> None:
    assert await _status(OneSession(), **headers) == 401


@pytest.mark.parametrize("who", [OneSession(), ConsoleUser("local", "operator", cast("Any", None))])
@pytest.mark.parametrize("origin", ["http://evil.example", "https://console.evil.example", "null", "", "http://["])
async def test_pages_of_other_origins_are_refused(who: Any, origin: str) -> None:
    headers = {"authorization": "Bearer right", "origin": origin}
    assert await _status(who, **headers) == 403
    (closed,) = await _ask(who, kind="websocket", **headers)
    assert (closed["type"], closed["code"]) == ("websocket.close", 4403)


async def test_a_stream_ends_with_its_session() -> None:
    sessions = OneSession()
    sent: list[dict[str, Any]] = []
    streaming = asyncio.Event()

    async def endless() -> Any:
        while True:
            yield b"event\n"
            streaming.set()
            await asyncio.sleep(0)

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    guard = Guard(StreamingResponse(endless()), cast("LoginSessions", sessions))
    headers = [(b"host", b"console"), (b"authorization", b"Bearer right")]
    scope = {"type": "http", "path": "/", "scheme": "https", "method": "GET", "headers": headers, "asgi": {}}
    serving = asyncio.create_task(guard(scope, receive, send))
    await asyncio.wait_for(streaming.wait(), 10)
    sessions.session.over.set()
    await asyncio.wait_for(serving, 10)
    assert sent[-1]["more_body"]


async def test_a_request_whose_session_ends_before_it_is_answered() -> None:
    sessions = OneSession()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        sessions.session.over.set()
        await asyncio.Event().wait()

    assert (await _answer(sessions, slow))[0]["status"] == 401


async def test_an_answer_of_known_length_that_has_begun_is_sent_to_its_end() -> None:
    """A browser reports half of it as a failure of the page."""
    sessions = OneSession()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        sessions.session.over.set()
        await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b"done"})

    assert (await _answer(sessions, slow))[-1]["body"] == b"done"


async def _answer(sessions: OneSession, app: ASGIApp) -> list[Message]:
    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    headers = [(b"host", b"console"), (b"authorization", b"Bearer right")]
    scope = {"type": "http", "path": "/", "scheme": "https", "method": "GET", "headers": headers, "asgi": {}}
    await asyncio.wait_for(Guard(app, cast("LoginSessions", sessions))(scope, receive, send), 10)
    return sent


def test_where_it_listens() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        check_access(host, login=False, tls=False)
    check_access("0.0.0.0", login=True, tls=True)
    with pytest.raises(InputError, match=r"beyond loopback the console needs credentials .* and --certificate"):
        check_access("0.0.0.0", login=False, tls=False)
    with pytest.raises(InputError, match="needs credentials"):
        check_access("10.0.0.1", login=False, tls=True)
    with pytest.raises(InputError, match="needs --certificate and --key"):
        check_access("console.example", login=True, tls=False)


async def test_a_reader_changes_nothing() -> None:
    changes = Changes(cast("Any", None), ConsoleUser("eve", "reader", cast("Any", None), logged_in=True))
    for change in (
        changes.ask("topic", "move", name="gps", to=["edge"]),
        changes.ask("topic", "rm", name="gps"),
        changes.ask("plan", "execute", id="p1", moves=None),
        changes.retry("gps", ["1"], force=True),
        changes.drop("gps", ["1"]),
    ):
        with pytest.raises(ForbiddenError, match="eve is a reader and may change nothing; allowed: role operator"):
            await change


def test_a_link_that_logs_in_is_for_loopback_and_for_who_may_log_in(tmp_path: Path) -> None:
    auth = AuthFolder.create(tmp_path / "auth")
    users = {role: read_credentials(auth.add_user(role, f"a-{role}")) for role in ("operator", "reader", "console")}
    for role in ("operator", "reader"):
        check_link("127.0.0.1", users[role])
    for host, credentials, said in (
        ("0.0.0.0", users["operator"], "--host is '0.0.0.0'; a link that logs in is for loopback only"),
        ("127.0.0.1", None, "--link needs credentials"),
        ("127.0.0.1", users["console"], "a-console has role console; allowed: operator and reader"),
    ):
        with pytest.raises(InputError, match=said):
            check_link(host, credentials)
