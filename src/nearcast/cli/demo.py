"""`nearcast demo`: see it work before reading anything."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from nearcast.cli.progress_bar import progress
from nearcast.errors import NearcastError
from nearcast.lab.demo import DemoResult, raise_if_incomplete, run_demo
from nearcast.site.ports import free_ports


def command(
    publishers: Annotated[int, typer.Option(min=10, max=1000, help="How many people and cars.")] = 50,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="For how long.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Another seed, other ways to walk.")] = 1,
    channel: Annotated[bool, typer.Option(help="Also show a channel of the data cluster (needs Java 17).")] = True,
) -> None:
    """Start three sites on this machine, let people and cars warn each other, and account for every message."""
    typer.echo(f"Three sites, {publishers} people and cars, {seconds:g} seconds of road traffic …")
    with tempfile.TemporaryDirectory(prefix="nearcast-demo-") as folder, progress("traffic") as tick:
        result = uvloop.run(run_demo(Path(folder), free_ports(30), publishers, seconds, seed, tick))
    Console().print(_table(result))
    raise_if_incomplete(result)
    typer.echo("Every message is accounted for.")
    if channel:
        _show_channel(seconds, seed)


def _show_channel(seconds: float, seed: int) -> None:
    """The data cluster: a few hundred subscribers of one channel. Without Java, a word about that and no more."""
    from nearcast.cluster.spark_session import JavaError, require_java

    try:
        require_java()
    except JavaError as error:
        typer.echo(f"The data cluster is not shown: {error}")
        return
    from nearcast.lab.channel_demo import run_channel_demo

    subscribers = 300
    typer.echo(f"A data cluster, {subscribers} subscribers of a channel, reports for {seconds:g} seconds …")
    with tempfile.TemporaryDirectory(prefix="nearcast-demo-") as folder, progress("reports") as tick:
        port = free_ports(20)
        result = asyncio.run(run_channel_demo(Path(folder), port, subscribers, seconds, seed, tick))
    table = Table("what", "count", title="Emergencies by kind and area, with the shelter of the area")
    table.columns[1].justify = "right"
    rows = [("subscribers", result.subscribers), ("rows in the data cluster (equal ones are shared)", result.distinct)]
    rows += [("reports fed", result.reports), ("notifications due", result.expected)]
    rows += [("notifications received", result.received), ("received twice", result.duplicated)]
    for what, count in rows:
        table.add_row(what, f"{count:,}")
    latency = sorted(result.latencies_ms)
    if latency:
        shown = " / ".join(f"{latency[int(len(latency) * q)]:.0f}" for q in (0.5, 0.9, 0.99))
        table.add_row("latency p50 / p90 / p99, report to notification, ms", shown)
    Console().print(table)
    if result.received != result.expected or result.duplicated:
        raise NearcastError("some notifications are missing or came twice")
    typer.echo("Every notification came once.")


def _table(result: DemoResult) -> Table:
    table = Table("what", "count", title="Pedestrians and cars, warned when they come too close")
    table.columns[1].justify = "right"
    rows = [("published", result.published)]
    rows += [(f"processed at {site}", count) for site, count in result.processed.items()]
    rows += [
        ("of these delegated (the publisher's home does not manage the topic)", result.delegated),
        ("warnings made", result.notified),
        ("warnings delivered (each to every subscriber of the road)", result.received),
        ("lost", result.lost),
        ("duplicated", result.duplicated),
    ]
    for what, count in rows:
        table.add_row(what, f"{count:,}")
    latency = " / ".join(f"{result.percentile(q):.1f}" for q in (50, 90, 99))
    table.add_row("latency p50 / p90 / p99, publication to warning, ms", latency)
    return table
