"""`nearcast lab chaos`: a whole deployment under a seeded schedule of faults, judged by what its processes noted."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.output import JsonOption, open_console, print_json
from nearcast.cli.progress_bar import progress
from nearcast.errors import InputError

__all__ = ["chaos"]


def chaos(
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same faults.")] = 1,
    minutes: Annotated[float, typer.Option(min=1.0, help="How long clients publish.")] = 4.0,
    quick: Annotated[bool, typer.Option("--quick", help="Three faults within three minutes.")] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="With the data cluster and a channel: Spark needs a core of its own.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The folder for chaos.json, the ledger and all logs.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Break a deployment in every way, and check that nothing acknowledged is lost. Needs root.

    Exit code 1: a promise was broken.

    Example: nearcast lab chaos --seed 7 --quick
    """
    from nearcast.lab.chaos.report import commit, verdict_lines, verdict_table
    from nearcast.lab.chaos.runner import run_chaos
    from nearcast.lab.chaos.schedule import PHASES, QUICK_PHASES, ChaosPlan, make_schedule
    from nearcast.lab.wan import missing_right

    if reason := missing_right():
        raise InputError(reason)
    if out is not None and (out / "ledger").exists():
        raise InputError(f"--out is {str(out)!r}, which has a ledger already; choose another folder")
    phases = QUICK_PHASES if quick else PHASES
    count = 3 if quick else phases.faults_within(minutes * 60)
    plan = ChaosPlan(seed, tuple(make_schedule(seed, count, phases, cluster=cluster)), phases, cluster)
    version = commit()
    console = open_console(stderr=as_json)
    if not cluster:
        console.print("Left out: the data cluster and its channel (--cluster).")
    console.print(f"seed {seed}, commit {version}, {count} faults in {plan.seconds:.0f} s", highlight=False)
    with tempfile.TemporaryDirectory(prefix="nearcast-chaos-") as temporary:
        folder = out if out is not None else Path(temporary)
        with progress("chaos") as advance:
            verdict = asyncio.run(run_chaos(plan, folder / "ledger", folder / "logs", advance))
        fields = {"seed": seed, "commit": version, "seconds": plan.seconds, **verdict.fields()}
        if out is not None:
            (out / "chaos.json").write_text(json.dumps(fields, indent=1) + "\n")
    if as_json:
        print_json(fields)
    console.print(verdict_table(verdict))
    for line in verdict_lines(verdict):
        console.print(line, highlight=False, markup=False)
    raise typer.Exit(0 if verdict.kept else 1)
