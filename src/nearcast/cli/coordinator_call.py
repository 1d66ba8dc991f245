"""One request of the command line to the coordinator that leads, and the option that says where it is."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from nearcast.cli.output import waiting_notice
from nearcast.nats.connection import check_url, open_connection
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.nats.identity.credentials import given_credentials

__all__ = ["DEFAULT_URL", "UrlOption", "broker_option", "call_leader"]

DEFAULT_URL = "nats://127.0.0.1:4222"


def broker_option(help_text: str) -> Any:
    """The option `--url`. What cannot be an address is refused before a command says that it waits for it."""
    return typer.Option(envvar="NEARCAST_URL", help=help_text, callback=check_url)


UrlOption = Annotated[str, broker_option("Any broker from which the coordinator can be reached.")]


def call_leader(url: str, noun: str, verb: str, timeout: float = 60.0, **body: Any) -> Any:
    """Send one request over a connection of its own and return the answer."""

    async def run() -> Any:
        connection = await open_connection([url], name="nearcast-cli", timeout=5, credentials=given_credentials())
        try:
            return await call_coordinator(connection, noun, verb, body, object, timeout)
        finally:
            await connection.close()

    with waiting_notice(f"Waiting for the coordinator by {url} ({noun} {verb})."):
        return asyncio.run(run())
