"""`nearcast demo`: see it work before reading anything."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from nearcast.cli.progress import progress
from nearcast.lab.demo import DemoResult, raise_if_anything_went_missing, run_demo
from nearcast.site.ports import free_ports


def command(
    publishers: Annotated[int, typer.Option(min=10, max=1000, help="How many people and cars.")] = 50,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="For how long.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Another seed, other ways to walk.")] = 1,
) -> None:
    """Start three sites on this machine, let people and cars warn each other, and account for every message."""
    typer.echo(f"Three sites, {publishers} people and cars, {seconds:g} seconds of road traffic …")
    with tempfile.TemporaryDirectory(prefix="nearcast-demo-") as folder, progress("traffic") as tick:
        result = uvloop.run(run_demo(Path(folder), free_ports(30, 14_200, 32_000), publishers, seconds, seed, tick))
    Console().print(_table(result))
    raise_if_anything_went_missing(result)
    typer.echo("Every message is accounted for.")


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
