"""`nearcast client …`: the registered clients and their homes."""

from __future__ import annotations

from typing import Annotated

import typer

from nearcast.cli.asking import DEFAULT_URL, JsonOption, UrlOption, ask, print_fields, print_rows
from nearcast.errors import NearcastError

app = typer.Typer()
Name = Annotated[str, typer.Argument(help="The client's name.")]


@app.callback()
def root() -> None:
    """See and move clients."""


@app.command("ls")
def list_clients(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """All clients that registered."""
    empty = "No client is registered. Clients register with: nearcast.connect(coordinator=...)"
    print_rows(ask(url, "client", "ls"), as_json, empty)


@app.command()
def info(name: Name, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """One client: its home, its coordinate, its topics."""
    print_fields(ask(url, "client", "info", name=name), as_json)


@app.command()
def move(
    name: Name,
    to: Annotated[str, typer.Option(help="Its new home.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Give a client another home; it connects there before it leaves the old one."""
    answer = ask(url, "client", "move", name=name, to=[to])
    print_fields(answer, as_json)
    if answer["error"]:
        raise NearcastError(f"client {name} stays where it is: {answer['error']}")
