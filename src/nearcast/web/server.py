"""The process behind `nearcast web`: one connection to a broker, one server for console and REST."""

from __future__ import annotations

import asyncio
import socket
from importlib.metadata import version
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from starlette.middleware.trustedhost import TrustedHostMiddleware

from nearcast.errors import InputError, NearcastError
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import given_credentials
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.ports import port_problem
from nearcast.web.access import ALLOWED_HOSTS, check_host
from nearcast.web.live import Live
from nearcast.web.operations import Operations
from nearcast.web.pages import add_pages
from nearcast.web.rest import add_rest

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["serve"]


async def serve(
    url: str, host: str, port: int, ready: Callable[[str], None], listener: socket.socket | None = None
) -> None:
    """Serve until SIGINT or SIGTERM. ready: told the address. listener: a listening socket instead of host and port."""
    if listener is not None:
        host = listener.getsockname()[0]
    check_host(host)
    if listener is None and port and (problem := port_problem(host, port)):
        raise InputError(f"--port {port} of {host} {problem}")
    connection = await open_connection([url], name="nearcast-web", timeout=10, credentials=given_credentials())
    live = None
    try:
        operations = Operations(connection)
        state = Live(operations)
        app = FastAPI(
            title="Nearcast",
            version=version("nearcast"),
            openapi_url="/api/v1/openapi.json",
            docs_url=None,
            redoc_url=None,
        )
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=ALLOWED_HOSTS)
        add_rest(app, operations, state)
        add_pages(operations, state)
        ui.run_with(app, title="Nearcast", dark=None, show_welcome_message=False)
        server = uvicorn.Server(
            uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=2)
        )
        live = asyncio.create_task(state.run(), name="live state")
        serving = asyncio.create_task(server.serve([listener] if listener else None), name="web server")
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.02)
        if serving.done():
            raise NearcastError(f"the console could not be started: {serving.exception()}")
        listening = listener or server.servers[0].sockets[0]
        ready(f"http://{host}:{listening.getsockname()[1]}")
        await serving
    finally:
        await cancel_and_wait(live)
        await connection.close()
