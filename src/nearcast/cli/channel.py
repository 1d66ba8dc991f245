"""`nearcast channel …`: parameterised queries over datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.dataset import _admin
from nearcast.cli.output import JsonOption, print_rows
from nearcast.cli.serve import ConfigOption
from nearcast.domain.channel import PARAMETER_TYPES, ChannelSpec, Parameter
from nearcast.errors import InputError

app = typer.Typer()
NameArgument = Annotated[str, typer.Argument(help="The channel.")]


@app.callback()
def root() -> None:
    """Parameterised queries over datasets."""


@app.command()
def add(
    name: NameArgument,
    query: Annotated[str, typer.Option(help="One SELECT with parameters written :name, or a .sql file with it.")],
    param: Annotated[list[str] | None, typer.Option(help=f"name:type, with {', '.join(PARAMETER_TYPES)}.")] = None,
    period: Annotated[float | None, typer.Option(help="Seconds between executions.")] = None,
    continuous: Annotated[bool, typer.Option("--continuous", help="As soon as records come.")] = False,
    new: Annotated[str, typer.Option(help="The dataset whose records each execution sees once.")] = "",
    keep: Annotated[float, typer.Option(help="Seconds for which results can be asked for again.")] = 3600.0,
    config: ConfigOption = Path("nearcast.toml"),
) -> None:
    """Check a query and add it as a channel."""
    if (period is None) != continuous:
        raise InputError(f"channel {name}: give either --period SECONDS or --continuous")
    parameters = tuple(_parameter(name, text) for text in param or [])
    text = _read(query)
    _admin(config).add_channel(ChannelSpec(name, text, parameters, period, new, keep))
    typer.echo(f"channel {name} added")


@app.command()
def drop(name: NameArgument, config: ConfigOption = Path("nearcast.toml")) -> None:
    """Drop a channel; its subscribers get no more results."""
    _admin(config).drop_channel(name)
    typer.echo(f"channel {name} dropped")


@app.command("list")
def list_(config: ConfigOption = Path("nearcast.toml")) -> None:
    """All channels."""
    table = Table("channel", "parameters", "runs", "query")
    for spec in _admin(config).channels().values():
        parameters = ", ".join(f"{p.name}:{p.type}" for p in spec.parameters)
        runs = "continuously" if spec.period is None else f"every {spec.period:g} s"
        table.add_row(spec.name, parameters, runs, " ".join(spec.query.split()))
    Console().print(table)


@app.command()
def subscriptions(
    name: Annotated[str, typer.Argument(help="Only of this channel.")] = "",
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """The subscriptions the coordinator knows: equal values are one, with its clients and their sites."""
    rows = call_leader(url, "channel", "subscriptions", name=name)
    print_rows(rows, as_json, "No client that registered with the coordinator subscribes to a channel.")


def _parameter(channel: str, text: str) -> Parameter:
    name, colon, kind = text.partition(":")
    if not colon:
        raise InputError(f"channel {channel}: --param {text!r}; name:type is needed, such as kind:string")
    return Parameter(name, kind.lower())


def _read(query: str) -> str:
    if not query.endswith(".sql"):
        return query
    try:
        return Path(query).read_text()
    except OSError as error:
        raise InputError(f"{query}: {error.strerror}") from None
