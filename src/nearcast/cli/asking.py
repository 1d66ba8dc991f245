"""What the commands that talk to a coordinator share: the address, one question, a table or JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Annotated, Any

import typer

from nearcast.nats.connection import open_connection
from nearcast.nats.coordinator_rpc import call_coordinator

__all__ = ["JsonOption", "UrlOption", "ask", "print_fields", "print_rows"]

UrlOption = Annotated[
    str, typer.Option(envvar="NEARCAST_URL", help="Any broker from which the coordinator can be reached.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]
DEFAULT_URL = "nats://127.0.0.1:4222"


def ask(url: str, noun: str, verb: str, timeout: float = 60.0, **body: Any) -> Any:
    """One question to the coordinator that leads."""

    async def run() -> Any:
        connection = await open_connection([url], name="nearcast-cli", timeout=5)
        try:
            return await call_coordinator(connection, noun, verb, body, object, timeout)
        finally:
            await connection.close()

    return asyncio.run(run())


_PIPE_WIDTH = 10_000  # who reads lines wants a line per row


def print_rows(rows: list[dict[str, Any]], as_json: bool, empty: str) -> None:
    """A table, one line per row."""
    if as_json:
        typer.echo(json.dumps(rows))
        return
    if not rows:
        typer.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")  # nothing is cut off: it may be an address
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


def print_fields(fields: dict[str, Any], as_json: bool) -> None:
    """One thing, a line per field."""
    if as_json:
        typer.echo(json.dumps(fields))
        return
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_text(item)}" for name, item in value.items()) or "-"
    return "-" if value is None or value == "" else str(value)
