"""`nearcast channel …`: parameterised queries over datasets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.dataset import admin, fields
from nearcast.cli.options import ConfigOption
from nearcast.cli.output import JsonOption, print_done, print_fields, print_json, print_rows
from nearcast.domain.channel import PARAMETER_TYPES, ChannelSpec, Parameter
from nearcast.domain.times import parse_time
from nearcast.errors import InputError

app = typer.Typer()
NameArgument = Annotated[str, typer.Argument(help="The channel.")]


@app.command("ls")
def list_channels(config: ConfigOption = Path("nearcast.toml"), as_json: JsonOption = False) -> None:
    """All channels. Example: nearcast channel ls"""
    with admin(config) as at:
        channels = at.channels().values()
    rows = [
        {
            "name": spec.name,
            "parameters": [f"{p.name}:{p.type}" for p in spec.parameters],
            "runs": "continuously" if spec.continuous else f"every {spec.period:g} s",
            "query": " ".join(spec.query.split()),
        }
        for spec in channels
    ]
    print_rows(rows, as_json, "There is no channel. Add one with: nearcast channel add")


@app.command()
def info(name: NameArgument, config: ConfigOption = Path("nearcast.toml"), as_json: JsonOption = False) -> None:
    """One channel with all its settings. Example: nearcast channel info by_kind"""
    with admin(config) as at:
        print_fields(fields(at.channel(name)), as_json)


@app.command()
def add(
    name: NameArgument,
    query: Annotated[str, typer.Option(help="One SELECT with parameters written :name, or a .sql file with it.")],
    param: Annotated[list[str] | None, typer.Option(help=f"name:type, with {', '.join(PARAMETER_TYPES)}.")] = None,
    period: Annotated[float | None, typer.Option(help="Seconds between executions.")] = None,
    continuous: Annotated[bool, typer.Option("--continuous", help="Execute for every new record.")] = False,
    new: Annotated[str, typer.Option(help="The dataset whose records each execution sees once.")] = "",
    keep: Annotated[float, typer.Option(help="Seconds for which results can be replayed.")] = 3600.0,
    config: ConfigOption = Path("nearcast.toml"),
    as_json: JsonOption = False,
) -> None:
    """Validate a query and add it as a channel.

    Example: nearcast channel add by_kind --query by_kind.sql --param kind:string --continuous
    """
    if (period is None) != continuous:
        raise InputError(f"channel {name}: give either --period SECONDS or --continuous")
    parameters = tuple(_parameter(name, text) for text in param or [])
    spec = ChannelSpec(name, _read(query), parameters, period, new, keep)
    with admin(config) as at:
        added = at.add_channel(spec)
    print_done(f"Channel {name} is added.", fields(added), as_json)


@app.command("rm")
def remove(name: NameArgument, config: ConfigOption = Path("nearcast.toml"), as_json: JsonOption = False) -> None:
    """Remove a channel with its results; its subscribers get no more. Example: nearcast channel rm by_kind"""
    with admin(config) as at:
        at.remove_channel(name)
    print_done(f"Channel {name} is removed.", {"name": name}, as_json)


@app.command()
def subscriptions(
    name: Annotated[str, typer.Argument(help="Only this channel.")] = "",
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """The subscriptions of registered clients: equal values are one, with its clients and their sites.

    Example: nearcast channel subscriptions by_kind
    """
    rows = call_leader(url, "channel", "subscriptions", name=name)
    print_rows(rows, as_json, "No client that registered with the coordinator subscribes to a channel.")


@app.command()
def explain(name: NameArgument, config: ConfigOption = Path("nearcast.toml"), as_json: JsonOption = False) -> None:
    """The statement that answers all subscriptions of a channel, and Spark's plan of it.

    Example: nearcast channel explain by_kind
    """
    with admin(config) as at:
        told = at.explain_channel(name)
    print_done(told, {"name": name, "explanation": told}, as_json)


@app.command("test")
def try_out(
    name: NameArgument,
    records: Annotated[list[str] | None, typer.Option(help="dataset=FILE with its records, as for `feed`.")] = None,
    value: Annotated[list[str] | None, typer.Option(help="name=value of a parameter.")] = None,
    config: ConfigOption = Path("nearcast.toml"),
    as_json: JsonOption = False,
) -> None:
    """The rows that one subscription would get from given records; a JSON object per line, or with --json one list of
    them. Nothing is published.

    Example: nearcast channel test by_kind --records reports=reports.jsonl --value kind=fire
    """
    files = {key: Path(text) for key, text in _pairs(name, "--records", records)}
    with admin(config) as at:
        types = {parameter.name: parameter.type for parameter in at.channel(name).parameters}
        values = {key: _typed(name, types.get(key, "string"), text) for key, text in _pairs(name, "--value", value)}
        rows = at.try_channel(name, files, values)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        typer.echo(json.dumps(row, ensure_ascii=False))


@app.command()
def replay(
    name: NameArgument,
    since: Annotated[str, typer.Option(help="A time such as 2026-05-01T12:00, or a span such as 2h.")],
    value: Annotated[list[str] | None, typer.Option(help="name=value: only the subscription with these.")] = None,
    to: Annotated[Path | None, typer.Option(help="A .parquet or .jsonl file for the results.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Send the results to the subscribers.")] = False,
    config: ConfigOption = Path("nearcast.toml"),
    as_json: JsonOption = False,
) -> None:
    """The results of a channel over the records that its dataset has kept: printed, to a file, or to subscribers.

    Example: nearcast channel replay by_kind --since 1h --value kind=fire
    """
    moment = parse_time("since", since)
    if moment is None:
        raise InputError("--since is empty; give a time such as 2026-05-01T12:00, or a span such as 2h")
    if to is not None and to.suffix not in (".parquet", ".jsonl"):
        raise InputError(f"--to {to}: unknown file type; allowed: .parquet, .jsonl")
    with admin(config) as at:
        types = {parameter.name: parameter.type for parameter in at.channel(name).parameters}
        values = {key: _typed(name, types.get(key, "string"), text) for key, text in _pairs(name, "--value", value)}
        results = at.replay_channel(name, moment, values if value or not types else None, publish)
    if to is not None and to.suffix == ".parquet":
        import pyarrow.parquet as pq  # slow to import, and only needed here

        pq.write_table(results, to)
    elif to is not None:
        to.write_text("".join(f"{line}\n" for line in results["payload"].to_pylist()))
    count = results.num_rows
    if publish or to is not None:
        print_done(f"Channel {name} was replayed: {count} results.", {"name": name, "results": count}, as_json)
        return
    lines = results["payload"].to_pylist()
    if as_json:
        print_json([json.loads(line) for line in lines])
        return
    for line in lines:
        typer.echo(line)


@app.command()
def faults(
    name: Annotated[str, typer.Argument(help="Only this channel.")] = "",
    config: ConfigOption = Path("nearcast.toml"),
    as_json: JsonOption = False,
) -> None:
    """Channels and subscriptions that are switched off or failed for a record, and why.

    Example: nearcast channel faults
    """
    with admin(config) as at:
        found = at.faults(name)
    rows = [
        {"channel": key.partition(".")[0], "subscription": key.partition(".")[2], "reason": reason}
        for key, reason in found.items()
    ]
    print_rows(rows, as_json, "No channel and no subscription has a fault.")


def _pairs(channel: str, option: str, texts: list[str] | None) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts or []]
    for name, sign, value in pairs:
        if not sign:
            raise InputError(f"channel {channel}: {option} {name + value!r}; allowed: name=value")
    return [(name, value) for name, _, value in pairs]


def _typed(channel: str, kind: str, text: str) -> object:
    """A value as its type is written in JSON; texts, dates and times as they are."""
    if kind in ("string", "date", "timestamp"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise InputError(f"channel {channel}: --value {text!r}; {kind} is needed") from None


def _parameter(channel: str, text: str) -> Parameter:
    name, colon, kind = text.partition(":")
    if not colon:
        raise InputError(f"channel {channel}: --param {text!r}; allowed: name:type, such as kind:string")
    return Parameter(name, kind.lower())


def _read(query: str) -> str:
    if not query.endswith(".sql"):
        return query
    try:
        return Path(query).read_text()
    except OSError as error:
        raise InputError(f"{query}: {error.strerror}") from None
