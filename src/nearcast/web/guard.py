"""Every request and websocket passes here: none of another origin, and without a session only the way to one."""

from __future__ import annotations

import asyncio
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse

from nearcast.nats.tasks import cancel_and_wait
from nearcast.web.users import ConsoleUser

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from nearcast.web.login_sessions import LoginSession, LoginSessions

__all__ = ["PUBLIC", "Guard", "cookie_name", "session_secret"]

PUBLIC = frozenset(
    {
        "/health", "/login", "/login.js", "/logout", "/api/v1/login", "/api/v1/login/challenge", "/api/v1/login/link",
    }
)  # fmt: skip
"""What is served to everybody."""
_NOT_LOGGED_IN = "not logged in; log in at /login, or send a token of `nearcast auth login` as bearer"
_END_WITHIN = 5.0  # seconds, for an answer that has begun when its session ends
_HEADERS = {
    "content-security-policy": "frame-ancestors 'none'",  # no page of others shows buttons of this one
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


class Guard:
    """ASGI middleware. who: the sessions, or the one user that everybody is where there is no login."""

    def __init__(self, app: ASGIApp, who: LoginSessions | ConsoleUser) -> None:
        self._app, self._who = app, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        if _of_another_origin(headers):
            origin = headers["origin"]
            await _refuse(scope, receive, send, 403, f"requests of pages of {origin[:200]} are refused")
            return
        state = scope.setdefault("state", {})
        if isinstance(self._who, ConsoleUser):
            state["user"] = self._who
            await self._app(scope, receive, _with_headers(send))
            return
        if path in PUBLIC:
            await self._app(scope, receive, _with_headers(send))
            return
        session = self._who.find(session_secret(headers, scope["scheme"]))
        if session is not None:
            state["user"] = session.user
            await self._serve(session, scope, receive, _with_headers(send))
        elif scope["type"] == "http" and "text/html" in headers.get("accept", ""):
            await RedirectResponse("/login", 303)(scope, receive, send)
        else:
            await _refuse(scope, receive, send, 401, _NOT_LOGGED_IN)

    async def _serve(self, session: LoginSession, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the session is over: streams and websockets end with it. An answer of known length that has begun
        is sent to its end: it was due, and a browser reports half of it as a broken one."""
        answered = finite = False

        async def sent(message: Message) -> None:
            nonlocal answered, finite
            answered = True
            finite = finite or "content-length" in Headers(raw=message.get("headers", []))
            await send(message)

        serving = asyncio.ensure_future(self._app(scope, receive, sent))
        over = asyncio.ensure_future(session.over.wait())
        try:
            await asyncio.wait((serving, over), return_when=asyncio.FIRST_COMPLETED)
            if finite:
                await asyncio.wait((serving,), timeout=_END_WITHIN)
            if serving.done():
                serving.result()
                return
        finally:
            await cancel_and_wait(serving, over)
        if not answered:
            await _refuse(scope, receive, send, 401, _NOT_LOGGED_IN)


def cookie_name(scheme: str) -> str:
    """Of the session. Browsers take the longer name from this very host by TLS only."""
    return "__Host-nearcast" if scheme in ("https", "wss") else "nearcast"


def session_secret(headers: Headers, scheme: str) -> str:
    """What a browser or a program shows to be a session."""
    kind, _, secret = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return secret.strip()
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(cookie_name(scheme))
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _of_another_origin(headers: Headers) -> bool:
    """A page of another site may not use a browser as its hands."""
    origin = headers.get("origin")
    try:
        return origin is not None and urlsplit(origin).netloc != headers.get("host")
    except ValueError:
        return True


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sent


async def _refuse(scope: Scope, receive: Receive, send: Send, code: int, why: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 4000 + code, "reason": why[:100]})
        return
    headers = {"www-authenticate": "Bearer"} if code == 401 else None
    await JSONResponse({"detail": why}, code, headers)(scope, receive, send)
