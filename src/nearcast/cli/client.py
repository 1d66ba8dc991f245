"""`nearcast client …`: the registered clients and their homes."""

from __future__ import annotations

from typing import Annotated

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.output import JsonOption, print_fields, print_rows
from nearcast.errors import NearcastError

app = typer.Typer()
Name = Annotated[str, typer.Argument(help="The client's name.")]


@app.command("ls")
def list_clients(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the registered clients. Example: nearcast client ls"""
    empty = "No client is registered. Clients register with: nearcast.connect(coordinator=...)"
    print_rows(call_leader(url, "client", "ls"), as_json, empty)


@app.command()
def info(name: Name, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show one client: its home, coordinate and topics. Example: nearcast client info car7"""
    print_fields(call_leader(url, "client", "info", name=name), as_json)


@app.command()
def move(
    name: Name,
    to: Annotated[str, typer.Option(help="Its new home.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Move a client to another home; it connects there before it leaves the old one.

    Example: nearcast client move car7 --to osaka
    """
    answer = call_leader(url, "client", "move", name=name, to=[to])
    print_fields(answer, as_json)
    if answer["error"]:
        raise NearcastError(f"client {name} was not moved: {answer['error']}")
