"""`nearcast plan show` and `nearcast plan apply`: the plan of the coordinator that leads."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from nearcast.cli.asking import DEFAULT_URL, JsonOption, UrlOption, ask

__all__ = ["apply", "show"]


def show(
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show it; that is all this command ever does.")
    ] = True,
) -> None:
    """What is wrong now, what the coordinator would move, and why. Nothing is changed."""
    _print(ask(url, "plan", "show"), as_json)


def apply(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Make the plan for the state as it is now, and carry it out."""
    _print(ask(url, "plan", "apply", timeout=600.0), as_json)


def _print(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(plan))
        return
    if not plan["found"]:
        typer.echo("Nothing is wrong.")
    for found in plan["found"]:
        typer.echo(f"! {found['sentence']}")
    if not plan["moves"]:
        typer.echo("Nothing to move.")
    for move in plan["moves"]:
        outcome = f" [{move['outcome']}]" if "outcome" in move else ""
        typer.echo(f"{move['move']}{outcome}\n    for {move['goal']}: {move['reason']}")
    for refused in plan["refused"]:
        typer.echo(f"not: {refused['move']}\n    {refused['refused_by']} refuses: {refused['reason']}")
    if plan["moves"]:
        typer.echo(f"{'':<20}{'before':>10}{'after':>10}")
        for name, before in plan["before"].items():
            typer.echo(f"{name.replace('_', ' '):<20}{before:>10}{plan['after'][name]:>10}")
