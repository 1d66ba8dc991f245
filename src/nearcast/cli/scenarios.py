"""`nearcast lab run …`: a whole scenario on an emulated wide area, under one policy after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.output import JsonOption, open_console, print_figures
from nearcast.cli.progress_bar import progress
from nearcast.errors import InputError

if TYPE_CHECKING:
    from nearcast.lab.scenarios.policies import Policy
    from nearcast.lab.scenarios.report import JudgedRun
    from nearcast.lab.scenarios.scenario import Scenario

__all__ = ["app"]

app = typer.Typer()

Seconds = Annotated[float, typer.Option(min=5.0, help="The measured time of each policy.")]
Policies = Annotated[str, typer.Option(help="Which, separated by commas, one after the other; all: every one.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same changes, for every policy.")]
Out = Annotated[Path, typer.Option(help="The folder for the CSV tables, the plot and the logs of all processes.")]


@app.command()
def swarms(
    seconds: Seconds = 600.0,
    swarms: Annotated[int, typer.Option(min=1)] = 8,
    drones: Annotated[int, typer.Option(min=1, help="Of each swarm.")] = 8,
    policies: Policies = "all",
    seed: Seed = 1,
    out: Out = Path("swarms"),
    as_json: JsonOption = False,
) -> None:
    """Swarms of drones that change zone every 20 to 60 s; bound 40 ms.

    Example: nearcast lab run swarms --seconds 60 --policies nearcast,hash
    """
    from nearcast.lab.scenarios.swarms import SwarmParameters
    from nearcast.lab.scenarios.swarms import swarms as make_swarms

    parameters = SwarmParameters(seconds=seconds, swarms=swarms, drones=drones, seed=seed)
    _run(make_swarms(parameters), policies, out, as_json)


@app.command()
def game(
    seconds: Seconds = 600.0,
    avatars: Annotated[int, typer.Option(min=8)] = 64,
    servers: Annotated[Path | None, typer.Option(help="WonderProxy servers.csv; made-up cities if not given.")] = None,
    pings: Annotated[Path | None, typer.Option(help="WonderProxy pings, needed with --servers.")] = None,
    country: Annotated[
        str, typer.Option(help="Only cities of this country are taken from --servers.")
    ] = "United States",
    policies: Policies = "all",
    seed: Seed = 1,
    out: Out = Path("game"),
    as_json: JsonOption = False,
) -> None:
    """Avatars that change their group every 30 to 60 s, played from five cities; bound 100 ms.

    Example: nearcast lab run game --seconds 60
    """
    from nearcast.lab.scenarios.game import game as make_game
    from nearcast.lab.workloads.formats import read_cities
    from nearcast.lab.workloads.game import GameParameters, generate_cities

    if servers is None or pings is None:
        if servers != pings:
            raise InputError("--servers and --pings belong together; give both or neither")
        known, origin = generate_cities(), "round trips are made up (--servers and --pings read real ones)"
    else:
        known, origin = read_cities(servers, pings, country), f"round trips of {pings.name}"
    parameters = GameParameters(duration_s=seconds, avatars=avatars, seed=seed)
    _run(make_game(known, parameters, origin), policies, out, as_json)


def _run(scenario: Scenario, policies: str, out: Path, as_json: bool) -> None:
    from nearcast.lab.scenarios.plot import draw
    from nearcast.lab.scenarios.report import BUSY_LAG_MS, judge, summary_table, write_tables
    from nearcast.lab.scenarios.runner import DRAIN, WARM_UP, run_scenario
    from nearcast.lab.wan import missing_right

    chosen = _chosen(policies)
    if reason := missing_right():
        raise InputError(reason)
    console = open_console(stderr=as_json)
    participants, changes = len(scenario.participants), len(scenario.changes)
    console.print(
        f"{scenario.name}: {participants} clients, {len(scenario.topics)} topics, {changes} changes in "
        f"{scenario.seconds:g} s, bound {scenario.bound_ms:g} ms, seed {scenario.seed}; {scenario.note}."
    )
    judged: list[JudgedRun] = []
    for n, policy in enumerate(chosen):
        with progress(f"{policy} ({n + 1} of {len(chosen)})") as advance:
            judged.append(judge(asyncio.run(run_scenario(scenario, policy, out / "logs" / policy, advance))))
        write_tables(judged, out)  # after each: what was measured is kept, whatever comes next
        draw(judged, out / f"{scenario.name}.png")
    if as_json:
        print_figures([run.summary() for run in judged])
    console.print(summary_table(judged))
    console.print(
        f"Judged: {scenario.seconds:g} s after {WARM_UP:g} s of warm-up; messages may come up to {DRAIN:g} s after "
        "the end. Lost deliveries count as above the bound."
    )
    for run in judged:
        if run.ledger.lag_ms > BUSY_LAG_MS:
            console.print(
                f"Note: with {run.run.policy}, publications were made up to {run.ledger.lag_ms:.0f} ms (p99) after "
                "they were due: the machine was too busy, and latencies are too long."
            )
        if run.ledger.failed:
            console.print(f"Note: with {run.run.policy}, {run.ledger.failed} publications raised an error.")
    console.print(f"Written to {out}: {scenario.name}.png, summary.csv, deliveries.csv, changes.csv, moves.csv, logs/")


def _chosen(names: str) -> list[Policy]:
    """The policies of an option, without those that this version cannot run."""
    from nearcast.lab.scenarios.policies import POLICIES, missing

    wanted = list(POLICIES) if names == "all" else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in POLICIES]:
        raise InputError(f"--policies: {unknown[0]!r} is none; allowed: all, {', '.join(POLICIES)}")
    chosen = [policy for policy in POLICIES if policy in wanted]
    for policy in list(chosen):
        if reason := missing(policy):
            typer.echo(f"Left out: {reason}.", err=True)
            chosen.remove(policy)
    if not chosen:
        raise InputError("--policies: none of those can be run")
    return chosen
