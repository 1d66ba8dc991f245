"""Requests of the command line over a connection of its own, and the option that says where."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from nearcast.cli.output import waiting_notice
from nearcast.nats.connection import Connection, check_url, open_connection
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.nats.identity.credentials import given_credentials

__all__ = ["DEFAULT_URL", "UrlOption", "broker_option", "call_leader", "run_connected"]

T = TypeVar("T")
DEFAULT_URL = "nats://127.0.0.1:4222"


def broker_option(help_text: str) -> Any:
    """The option `--url`. What cannot be an address is refused before a command says that it waits for it."""
    return typer.Option(envvar="NEARCAST_URL", help=help_text, callback=check_url)


UrlOption = Annotated[str, broker_option("Any broker from which the coordinator can be reached.")]


def run_connected(url: str, notice: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    """What the work on a connection gives. notice: said if it takes long."""

    async def run() -> T:
        connection = await open_connection([url], name="nearcast-cli", timeout=5, credentials=given_credentials())
        try:
            return await work(connection)
        finally:
            await connection.close()

    with waiting_notice(notice):
        return asyncio.run(run())


def call_leader(url: str, noun: str, verb: str, timeout: float = 60.0, **body: Any) -> Any:
    """One request to the coordinator that leads, and its answer."""
    return run_connected(
        url,
        f"Waiting for the coordinator by {url} ({noun} {verb}).",
        lambda connection: call_coordinator(connection, noun, verb, body, object, timeout),
    )
