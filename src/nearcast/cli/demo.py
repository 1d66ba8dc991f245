"""`nearcast demo`: see it work before reading anything."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from nearcast.cli.output import plain_console, print_figures
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.lab.demo.deployment import Say
    from nearcast.lab.demo.run import DemoOptions, DemoResult

_SHOWN = 3


def command(
    duration: Annotated[float, typer.Option(min=5, max=3600, help="Seconds of the story.")] = 90.0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the city up afterwards, until Ctrl-C.")] = False,
    act: Annotated[int | None, typer.Option(help="Play only this act, 1 to 5.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, another city.")] = 1,
    cluster: Annotated[bool, typer.Option(help="Also show the data cluster (needs Java 17).")] = True,
    distance: Annotated[bool, typer.Option(help="Emulate a wide area (needs root).")] = True,
    logs: Annotated[Path | None, typer.Option(help="For the logs of all processes.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the account as one JSON value; what happens goes to standard error.")
    ] = False,
) -> None:
    """A city on one machine: five edge sites, a cloud, a story in five acts, and an account of every message.

    Example: nearcast demo --duration 60 --act 3
    """
    from nearcast.lab.demo.city import City, chosen_acts
    from nearcast.lab.demo.run import DemoOptions

    begun = time.monotonic()

    def say(text: str) -> None:
        typer.echo(f"[{time.monotonic() - begun:5.1f} s] {text}" if text else "", err=as_json)

    folder = logs or Path(tempfile.gettempdir()) / "nearcast-demo-logs"
    folder.mkdir(parents=True, exist_ok=True)
    # Connections are lost on purpose here: what libraries say of that is no news, and goes where all logs go.
    logging.basicConfig(
        filename=folder / "demo.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    acts = chosen_acts(act)
    say(f"A city: five edge sites and a cloud on this machine, a story of {duration:g} s. Logs: {folder}")
    options = DemoOptions(City(duration, seed), acts, folder, cluster, distance, keep)
    result = asyncio.run(_run(options, say, print_figures if as_json else _print))
    typer.echo(f"Logs of all processes: {folder}", err=as_json)
    if result is None:
        raise NearcastError("stopped before the end of the story")
    account = result.account
    if account.lost or account.duplicated:
        what = f"{account.lost} notifications were lost, {account.duplicated} came twice"
        raise NearcastError(f"{what}; logs: {folder}")
    typer.echo("Nothing was lost, nothing came twice.", err=as_json)
    if result.problem:
        raise NearcastError(f"{result.problem}; logs: {folder}")


async def _run(options: DemoOptions, say: Say, show: Callable[[DemoResult], None]) -> DemoResult | None:
    """The result, once it was shown; nothing when it was interrupted before. Everything is ended in order."""
    from nearcast.lab.demo.run import run_demo

    results: list[DemoResult] = []

    def done(result: DemoResult) -> None:
        results.append(result)
        show(result)

    task = asyncio.ensure_future(run_demo(options, say, done))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return results[0] if results else None


def _print(result: DemoResult) -> None:
    account, console = result.account, plain_console()
    paths = Table("path", title="What happened: latency from publication to receipt, ms")
    for title in ("notifications", "p50", "p90", "p99"):
        paths.add_column(title, justify="right")
    for path in account.paths:
        figures = (f"{value:.0f}" for value in (path.p50, path.p90, path.p99))
        paths.add_row(path.path, f"{path.notifications:,}", *figures)
    console.print(paths)
    table = Table("what", "Nearcast", "plain placement")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("drones' messages above their bound of 40 ms", f"{account.above:.1%}", f"{account.plain_above:.1%}")
    kinds = [move.kind for move in result.moves]
    table.add_row("moves of topics", str(kinds.count("topic")), "0")
    table.add_row("moves of clients", str(kinds.count("client")), "0")
    table.add_row("longest time a drone heard nothing", f"{account.longest_gap_s:.1f} s", "")
    table.add_row("lost", str(account.lost), str(account.plain_lost))
    table.add_row("duplicated", str(account.duplicated), "")
    table.add_row("publications that were refused, and their publisher told", str(account.failed), "")
    console.print(table)
    typer.echo(
        "Plain placement: the same drones and messages at the same time; homes nearest at first, topics by hash."
    )
    if not result.emulated:
        typer.echo("There was no distance between the sites, so both columns say little about placement.")
    chosen = account.sentences[:: max(1, len(account.sentences) // _SHOWN)][:_SHOWN]
    for text in chosen:
        typer.echo(f"  “{text}”")
