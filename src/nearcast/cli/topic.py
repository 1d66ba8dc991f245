"""`nearcast topic …`: the registered topics, and where their processors run."""

from __future__ import annotations

from typing import Annotated

import typer

from nearcast.cli.asking import DEFAULT_URL, JsonOption, UrlOption, ask, print_fields, print_rows
from nearcast.errors import NearcastError

app = typer.Typer()
Name = Annotated[str, typer.Argument(help="The topic, or the pattern of a family of topics.")]


@app.callback()
def root() -> None:
    """See, add, remove and move topics."""


@app.command("ls")
def list_topics(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """All topics."""
    print_rows(ask(url, "topic", "ls"), as_json, "No topic is registered. Add one with: nearcast topic add")


@app.command()
def info(name: Name, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """One topic: who runs it, where it is kept, how it fares."""
    print_fields(ask(url, "topic", "info", name=name), as_json)


@app.command()
def add(
    name: Name,
    managed_by: Annotated[
        list[str] | None, typer.Option(help="A site that runs its processor; may be repeated.")
    ] = None,
    replica: Annotated[list[str] | None, typer.Option(help="A site whose store keeps it; may be repeated.")] = None,
    quorum: Annotated[int, typer.Option(help="Stores that must have a message before `publish` returns.")] = 0,
    bound_ms: Annotated[float | None, typer.Option(help="The latency bound, from publisher to subscriber.")] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Register a topic; its sites start it when they hear of it."""
    spec = {
        "name": name, "managed_by": managed_by or [], "replicas": replica or [], "quorum": quorum, "bound_ms": bound_ms,
    }  # fmt: skip
    print_fields(ask(url, "topic", "add", spec=spec), as_json)


@app.command("rm")
def remove(name: Name, url: UrlOption = DEFAULT_URL) -> None:
    """Unregister a topic; its sites stop it. What stores keep stays."""
    ask(url, "topic", "rm", name=name)
    typer.echo(f"Topic {name} is removed.")


@app.command()
def move(
    name: Name,
    to: Annotated[list[str], typer.Option(help="The site that shall run it; may be repeated.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Run a topic's processor elsewhere, while messages flow."""
    answer = ask(url, "topic", "move", name=name, to=to)
    print_fields(answer, as_json)
    if answer["outcome"] != "done":
        raise NearcastError(f"topic {name} was not moved: {answer['reason']}")
