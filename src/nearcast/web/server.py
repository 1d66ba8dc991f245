"""The process behind `nearcast web`: one connection to a broker, one server for console and REST."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.metadata import version

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from nearcast.errors import InputError, NearcastError
from nearcast.metrics import listen_near
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import given_credentials
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.ports import port_problem
from nearcast.web.access import LOOPBACK_NAMES, ServerTls, check_access, check_link
from nearcast.web.guard import Guard
from nearcast.web.live import Live
from nearcast.web.login import add_health, add_login
from nearcast.web.login_sessions import LoginSessions
from nearcast.web.metrics import WebMetrics, add_metrics
from nearcast.web.operations import Operations
from nearcast.web.pages import add_pages
from nearcast.web.rest import add_rest
from nearcast.web.users import ConsoleUser, open_user

__all__ = ["ListenOptions", "Listening", "serve"]

_log = logging.getLogger(__name__)
_RENEWAL_PERIOD = 5.0
_METRICS = "127.0.0.1:9484"


@dataclass(frozen=True)
class ListenOptions:
    """listener: a listening socket instead of host and port. login: asked for wherever there are credentials.

    link: on loopback, the secret of a link that lets in whoever opens it, as the user of the credentials.
    metrics: HOST:PORT of a listener for Prometheus alone, which has no session; where there is no login none is needed.
    """

    host: str = "127.0.0.1"
    port: int = 8600
    listener: socket.socket | None = None
    tls: ServerTls | None = None
    login: bool = True
    metrics: str = ""
    link: str = ""


@dataclass(frozen=True)
class Listening:
    """Where the console is, and its metrics if that is elsewhere. login: whether there is one. link: that logs in."""

    address: str
    metrics: str
    login: bool
    link: str = ""


async def serve(url: str, listen: ListenOptions, ready: Callable[[Listening], None]) -> None:
    """Serve until SIGINT or SIGTERM. ready: told where."""
    host = listen.listener.getsockname()[0] if listen.listener is not None else listen.host
    credentials = given_credentials()
    login = listen.login and credentials is not None
    check_access(host, login=login, tls=listen.tls is not None)
    if listen.link:
        check_link(host, credentials if login else None)
    if listen.tls is not None:
        listen.tls.check()
    if listen.listener is None and listen.port and (problem := port_problem(host, listen.port)):
        raise InputError(f"--port {listen.port} of {host} {problem}")
    connection = await open_connection([url], name="nearcast-web", timeout=10, credentials=credentials)
    own = open_user(connection)
    try:
        sessions = LoginSessions(url, credentials, link=listen.link) if login and credentials is not None else None
        operations = Operations(connection)
        state = Live(operations)
        await state.positions.follow(connection)
        metrics = WebMetrics(state)
        app = _application(operations, state, metrics, sessions, own)
        config = uvicorn.Config(
            app, host=host, port=listen.port, log_level="warning", timeout_graceful_shutdown=2,
            proxy_headers=False, server_header=False,  # who may log in how often is counted by true addresses
            ssl_certfile=listen.tls.certificate if listen.tls else None,
            ssl_keyfile=listen.tls.key if listen.tls else None,
        )  # fmt: skip
        server = uvicorn.Server(config)
        async with (
            _background(state, sessions, config, listen.tls),
            _serving_metrics(metrics, listen.metrics, login) as scraped,
        ):
            serving = asyncio.create_task(
                server.serve([listen.listener] if listen.listener else None), name="web server"
            )
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.02)
            if serving.done():
                raise NearcastError(f"the console could not be started: {serving.exception()}")
            listening = listen.listener or server.servers[0].sockets[0]
            shown = f"[{host}]" if ":" in host else host
            address = f"http{'s' if listen.tls else ''}://{shown}:{listening.getsockname()[1]}"
            link = f"{address}/login#link={listen.link}" if listen.link else ""
            ready(Listening(address, scraped, login, link))
            await serving
    finally:
        await own.close()


def _application(
    operations: Operations, state: Live, metrics: WebMetrics, sessions: LoginSessions | None, own: ConsoleUser
) -> FastAPI:
    """own: everybody, where there is no login."""
    app = FastAPI(
        title="Nearcast", version=version("nearcast"), openapi_url="/api/v1/openapi.json", docs_url=None, redoc_url=None
    )
    app.add_middleware(Guard, who=sessions or own)
    if sessions is None:  # with a login, a name that somebody else gave this address has no session
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_NAMES)
    add_metrics(app, metrics)
    add_health(app)
    if sessions is not None:
        add_login(app, sessions)
    add_rest(app, operations, state, metrics)
    add_pages(operations, state, sessions)
    ui.run_with(app, title="Nearcast", dark=None, show_welcome_message=False)
    return app


@contextlib.asynccontextmanager
async def _serving_metrics(metrics: WebMetrics, address: str, login: bool) -> AsyncIterator[str]:
    """Where they are served beside the console, if they are."""
    if not address and not login:
        yield ""
        return
    server = listen_near(metrics.own, address, _METRICS)
    try:
        yield server.url
    finally:
        await server.stop_from_loop()


@contextlib.asynccontextmanager
async def _background(
    state: Live, sessions: LoginSessions | None, config: uvicorn.Config, tls: ServerTls | None
) -> AsyncIterator[None]:
    """The state is asked for, sessions end, and a renewed certificate is taken."""
    tasks = [asyncio.create_task(state.run(), name="live state")]
    if sessions is not None:
        tasks.append(asyncio.create_task(sessions.run(), name="sessions"))
    if tls is not None:
        tasks.append(asyncio.create_task(_renew(config, tls), name="certificate"))
    try:
        yield
    finally:
        await cancel_and_wait(*tasks)


async def _renew(config: uvicorn.Config, tls: ServerTls) -> None:
    """New connections get the certificate that is in the file now; the old one stays if that is unusable."""
    taken = tls.changed
    while True:
        await asyncio.sleep(_RENEWAL_PERIOD)
        try:
            found = tls.changed
            if found != taken and config.ssl is not None:
                tls.check()
                config.ssl.load_cert_chain(tls.certificate, tls.key)
                taken = found
                _log.warning("the renewed certificate %s is used from now on", tls.certificate)
        except (OSError, InputError) as error:
            _log.warning("the certificate is not renewed: %s", error)
        except Exception:
            _log.exception("the certificate is not renewed")
