"""The login page, the requests behind it and behind `nearcast auth login`, and whether the console is up."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import Field

from nearcast.web.guard import cookie_name, session_secret
from nearcast.web.login_sessions import LoginSession, LoginSessions
from nearcast.web.request_bodies import Body, User

__all__ = ["add_health", "add_login"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_FILES = files("nearcast.web")


class LoginBegin(Body):
    """token: the user's, from its credentials."""

    token: str = Field(min_length=1, max_length=64_000)


class LoginEnd(Body):
    """signature: of the challenge by the user's key, in base64. cookie: for a browser, which is not told the token."""

    id: str = Field(min_length=1, max_length=100)
    signature: str = Field(min_length=1, max_length=200)
    cookie: bool = False


class LoginByLink(Body):
    """link: the secret of the link that the console printed. cookie: for a browser, which is not told the token."""

    link: str = Field(min_length=1, max_length=200)
    cookie: bool = False


def add_health(app: FastAPI) -> None:
    """`/health`: whether this process answers."""

    @app.get("/health", include_in_schema=False)
    async def health() -> Response:
        return PlainTextResponse("ok\n")


def add_login(app: FastAPI, sessions: LoginSessions) -> None:
    """The page at /login, and login and logout."""

    @app.get("/login", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(
            (_FILES / "login.html").read_text(),
            headers={"content-security-policy": _POLICY, "cache-control": "no-store"},
        )

    @app.get("/login.js", include_in_schema=False)
    async def script() -> Response:
        return Response((_FILES / "login.js").read_text(), media_type="text/javascript")

    responses: dict[int | str, dict[str, Any]] = {
        400: {"description": "Refused: the message says what is wrong and what is allowed."},
        401: {"description": "Refused: by the broker, or the role is neither operator nor reader."},
        429: {"description": "Too many logins of this address failed."},
    }

    @app.post("/api/v1/login/challenge", responses=responses, tags=["login"])
    async def challenge(login: LoginBegin, request: Request) -> dict[str, str]:
        """Begin a login: what the key of the user is to sign within ten seconds."""
        identity, nonce = await sessions.challenge(login.token, _address(request))
        return {"id": identity, "challenge": nonce}

    @app.post("/api/v1/login", responses=responses, tags=["login"])
    async def end_login(login: LoginEnd, request: Request, response: Response) -> dict[str, str]:
        """End a login: a token to send as bearer, good for twelve hours at most."""
        return _told(await sessions.login(login.id, login.signature), login.cookie, request, response)

    @app.post("/api/v1/login/link", responses=responses, tags=["login"])
    async def login_by_link(login: LoginByLink, request: Request, response: Response) -> dict[str, str]:
        """Log in by the link of `nearcast web --link`: a token as after any login."""
        session = await sessions.login_by_link(login.link, _address(request))
        return _told(session, login.cookie, request, response)

    @app.get("/api/v1/session", tags=["login"])
    async def session(user: User) -> dict[str, str]:
        """Who is logged in."""
        return {"user": user.name, "role": user.role}

    @app.get("/api/v1/sessions", tags=["login"])
    async def open_sessions() -> list[dict[str, str]]:
        """Who is logged in to this console, and from where."""
        return [{"user": one.user.name, "role": one.user.role, "address": one.address} for one in sessions.open()]

    @app.post("/logout", status_code=204, include_in_schema=False)
    async def logout(request: Request, response: Response) -> None:
        scheme = request.url.scheme
        if (found := sessions.find(session_secret(request.headers, scheme))) is not None:
            sessions.end(found)
        response.delete_cookie(
            cookie_name(scheme), httponly=True, samesite="strict", secure=scheme == "https", path="/"
        )


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _told(session: LoginSession, cookie: bool, request: Request, response: Response) -> dict[str, str]:
    """What who has logged in is told; a browser keeps the session's secret as a cookie."""
    told = {"user": session.user.name, "role": session.user.role}
    if not cookie:
        return {**told, "token": session.secret}
    scheme = request.url.scheme
    response.set_cookie(
        cookie_name(scheme), session.secret, httponly=True, samesite="strict", secure=scheme == "https", path="/"
    )
    return told
