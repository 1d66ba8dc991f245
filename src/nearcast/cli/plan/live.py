"""`nearcast plan show` and `nearcast plan apply`: the plan of the coordinator that leads."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Annotated, Any

import typer

from nearcast.cli.asking import DEFAULT_URL, JsonOption, UrlOption, ask

__all__ = ["apply", "show"]

_FIGURES = {
    "late_topics": "topics above their bound",
    "worst_latency_ms": "slowest topic, ms",
    "overloaded_sites": "overloaded sites",
    "cov": "difference of sites' loads, share of the mean",
    "largest_site_load": "busiest site, messages/s",
}


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
        typer.echo(f"! {_sentence(found['sentence'])}")
    if not plan["moves"]:
        typer.echo("Nothing to move.")
    _tell(plan["moves"], "goal", "is to")
    if plan["refused"]:
        _tell(plan["refused"], "refused_by", "is not to")
    if plan["moves"]:
        width = max(map(len, _FIGURES.values()))
        typer.echo(f"{'':<{width}}{'before':>10}{'after':>10}")
        for name, before in plan["before"].items():
            if before or plan["after"][name]:
                typer.echo(f"{_FIGURES[name]:<{width}}{before:>10}{plan['after'][name]:>10}")


def _tell(moves: list[dict[str, Any]], goal: str, verb: str) -> None:
    """One sentence each; those that change alike for the same reason are named together."""

    def likeness(move: dict[str, Any]) -> tuple[str, ...]:
        kind = move["subject"].partition(" ")[0]
        return (kind, move["change"], move["reason"], move[goal], move.get("outcome", ""))

    for (kind, change, reason, served, outcome), alike in groupby(moves, likeness):
        first, *others = [move["subject"] for move in alike]
        ended = f" [{outcome}]" if outcome else ""
        typer.echo(f"- {_sentence(f'{first} {verb} {change}, because {reason}')} ({served}){ended}")
        if others:
            names = ", ".join(other.removeprefix(f"{kind} ") for other in others)
            typer.echo(f"    Likewise {len(others)} more: {names}.")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
