"""`nearcast plan show` and `nearcast plan apply`: the plan of the coordinator that leads."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated, Any

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.output import JsonOption, print_json, print_rows

__all__ = ["apply", "history", "print_plan", "show"]

_FIGURES = {
    "late_topics": "topics above their bound",
    "worst_latency_ms": "slowest topic, ms",
    "overloaded_sites": "overloaded sites",
    "cov": "difference of sites' loads, share of the mean",
    "largest_site_load": "busiest site, messages/s",
}


def show(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show what is wrong now, what the coordinator would move, and why. Changes nothing. Example: nearcast plan show"""
    print_plan(call_leader(url, "plan", "show"), as_json)


def apply(
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan without executing it.")] = False,
    identity: Annotated[str, typer.Option("--id", help="Execute exactly the plan that was shown under this id.")] = "",
) -> None:
    """Execute a plan that was shown, or make one for the present state and execute it.

    Example: nearcast plan apply --dry-run
    """
    if identity and not dry_run:
        print_plan(call_leader(url, "plan", "execute", timeout=600.0, id=identity), as_json)
        return
    verb = "show" if dry_run else "apply"
    print_plan(call_leader(url, "plan", verb, timeout=600.0), as_json)


def history(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the last moves that were made, when, for which goal and why. Example: nearcast plan history"""
    rows = call_leader(url, "move", "ls")
    if not as_json:
        for row in rows:
            row["time"] = datetime.fromtimestamp(row["time"], UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    print_rows(rows, as_json, "Nothing was moved since this coordinator leads.")


def print_plan(plan: dict[str, Any], as_json: bool) -> None:
    """Anomalies, moves and refused moves as sentences, then the figures before and after; or JSON."""
    if as_json:
        print_json(plan)
        return
    if not plan["found"]:
        typer.echo("Nothing is wrong.")
    for found in plan["found"]:
        typer.echo(f"! {_sentence(found['sentence'])}")
    if not plan["moves"]:
        typer.echo("Nothing to move.")
    _print_moves(plan["moves"], "goal", "is to")
    _print_moves(plan["refused"], "refused_by", "is not to")
    for left in plan["left"]:
        stays = f"topic {left['topic']} stays, because {left['reason']}"
        typer.echo(f"= {_sentence(stays)}")
        typer.echo(f"    {left['latency']}")
    if plan["moves"]:
        width = max(map(len, _FIGURES.values()))
        typer.echo(f"{'':<{width}}{'before':>10}{'after':>10}")
        for name, before in plan["before"].items():
            if before or plan["after"][name]:
                typer.echo(f"{_FIGURES[name]:<{width}}{before:>10}{plan['after'][name]:>10}")
        if "expires" in plan:
            until = datetime.fromtimestamp(plan["expires"], UTC).isoformat(" ", "seconds").removesuffix("+00:00")
            typer.echo(f"Execute exactly this until {until} UTC: nearcast plan apply --id {plan['id']}")


def _print_moves(moves: list[dict[str, Any]], goal: str, verb: str) -> None:
    """One sentence each; consecutive moves with the same change and reason share one."""

    def sentence_key(move: dict[str, Any]) -> tuple[str, ...]:
        kind = move["subject"].partition(" ")[0]
        return (kind, move["change"], move["reason"], move[goal], move.get("outcome", ""))

    for (kind, change, reason, served, outcome), alike in groupby(moves, sentence_key):
        first, *others = [move["subject"] for move in alike]
        ended = f" [{outcome}]" if outcome else ""
        typer.echo(f"- {_sentence(f'{first} {verb} {change}, because {reason}')} ({served}){ended}")
        if others:
            names = ", ".join(other.removeprefix(f"{kind} ") for other in others)
            typer.echo(f"    Likewise {len(others)} more: {names}.")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
