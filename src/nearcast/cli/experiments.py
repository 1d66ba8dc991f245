"""`nearcast lab run <experiment>` and `nearcast lab run all`: the papers' experiments, with tables, figures, a page."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as Screen

from nearcast.cli.output import JsonOption, open_console, print_figures
from nearcast.cli.progress_bar import progress
from nearcast.errors import InputError, NearcastError
from nearcast.lab.experiments.catalog import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearcast.lab.experiments.experiment import Claim, Experiment, Task
    from nearcast.lab.experiments.results import Results

__all__ = ["add_commands"]

Quick = Annotated[bool, typer.Option("--quick", help="Fewer points and seeds: minutes instead of hours.")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Instances of each point; each experiment has its own default.")]
Out = Annotated[Path, typer.Option(help="Folder for a CSV and a PNG of each experiment; FOLDER.md is their page.")]
Data = Annotated[Path | None, typer.Option(help="Folder of real data (docs/lab.md); generated data if not given.")]
Master = Annotated[str | None, typer.Option(help="Run the tasks on this Spark cluster: local[2], spark://host:7077.")]
Processes = Annotated[int, typer.Option(min=0, help="Processes for the tasks; 0: one per core.")]
DEFAULT_OUT = Path("results")


def add_commands(app: typer.Typer) -> None:
    """A command for each experiment of the catalog, and one for all."""
    app.command("all", help=f"Every experiment of the five papers, and the page of results. {_example('all')}")(run_all)
    for name, listed in CATALOG.items():
        app.command(name, help=f"{listed.summary} {_example(name)}")(_command(name))


def _example(name: str) -> str:
    return f"Example: nearcast lab run {name} --quick --out results"


def _command(name: str) -> Callable[..., None]:
    def run_one(
        quick: Quick = False,
        seeds: Seeds = None,
        out: Out = DEFAULT_OUT,
        data: Data = None,
        master: Master = None,
        processes: Processes = 0,
        as_json: JsonOption = False,
    ) -> None:
        from nearcast.lab.experiments.catalog import load, load_all
        from nearcast.lab.experiments.page import write_page

        experiment = load(name)
        if reason := experiment.missing():
            raise InputError(reason)
        claims = _run(experiment, quick=quick, seeds=seeds, out=out, data=data, master=master, processes=processes)
        _print(claims, as_json)
        page = write_page(load_all(), out)
        typer.echo(f"Written: {out / name}.csv, {out / name}.png, {page}", err=as_json)

    return run_one


def run_all(
    quick: Quick = False,
    seeds: Seeds = None,
    only: Annotated[str, typer.Option(help="Only experiments whose names begin so; several separated by commas.")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Leave out what an interrupted run has in --out.")] = False,
    out: Out = DEFAULT_OUT,
    data: Data = None,
    master: Master = None,
    processes: Processes = 0,
    as_json: JsonOption = False,
) -> None:
    """One experiment after the other; one that fails or cannot be run here is named at the end.

    Example: nearcast lab run all --quick --out results
    """
    from nearcast.lab.experiments.catalog import load_all
    from nearcast.lab.experiments.page import write_page

    prefixes = tuple(part.strip() for part in only.split(","))
    experiments = load_all()
    chosen = [each for each in experiments if each.name.startswith(prefixes)]
    if not chosen:
        raise InputError(f"--only is {only!r}; no experiment begins so: {', '.join(CATALOG)}")
    for experiment in chosen:
        experiment.tasks(quick=quick, seeds=seeds, data=data)  # a missing file is refused before hours of work
    started = time.perf_counter()
    claims: list[Claim] = []
    notes: dict[str, str] = {}
    failed: list[str] = []
    for experiment in chosen:
        if reason := experiment.missing():
            notes[experiment.name] = reason
            typer.echo(f"{experiment.name}: left out: {reason}", err=True)
            continue
        try:
            claims += _run(
                experiment, quick=quick, seeds=seeds, out=out, data=data, master=master, processes=processes,
                resume=resume,
            )  # fmt: skip
        except Exception as error:  # a failed experiment must not cost the hours of the others
            traceback.print_exc()
            notes[experiment.name] = f"failed: {error}"
            failed.append(experiment.name)
    _print(claims, as_json)
    page = write_page(experiments, out, notes)
    typer.echo(f"{len(chosen) - len(notes)} experiments in {time.perf_counter() - started:.0f} s: {page}", err=as_json)
    if failed:
        raise NearcastError(f"failed: {', '.join(failed)}")


def _earlier(experiment: Experiment, tasks: Sequence[Task], out: Path) -> Results | None:
    """What an earlier run of the same tasks wrote. The figure is written last."""
    from nearcast.lab.experiments.results import read
    from nearcast.lab.experiments.sweep import described

    table = out / f"{experiment.name}.csv"
    if not table.with_suffix(".png").exists() or not table.with_suffix(".json").exists():
        return None
    earlier = read(table)
    return earlier if described(tasks).items() <= earlier.about.items() else None


def _run(
    experiment: Experiment,
    *,
    quick: bool,
    seeds: int | None,
    out: Path,
    data: Path | None,
    master: str | None,
    processes: int,
    resume: bool = False,
) -> Sequence[Claim]:
    from nearcast.lab.experiments.figure import draw
    from nearcast.lab.experiments.results import write
    from nearcast.lab.experiments.sweep import sweep

    tasks = experiment.tasks(quick=quick, seeds=seeds, data=data)
    if resume and (earlier := _earlier(experiment, tasks, out)) is not None:
        typer.echo(f"{experiment.name}: {out} has it", err=True)
        return experiment.claims(earlier)
    with progress(f"{experiment.name}: {len(tasks)} tasks") as advance:
        results = sweep(experiment, tasks, advance, master=master, processes=processes)
    write(results, out / f"{experiment.name}.csv")
    draw(experiment, results, out / f"{experiment.name}.png")
    typer.echo(f"{experiment.name}: {len(tasks)} tasks in {results.about['seconds']} s", err=True)
    return experiment.claims(results)


def _print(claims: Sequence[Claim], as_json: bool) -> None:
    if as_json:
        print_figures(claims)
        return
    screen = Screen("claim", "the paper", "ours", "verdict", show_lines=False)
    for claim in claims:
        screen.add_row(claim.claim, claim.paper, claim.ours, claim.verdict)
    open_console().print(screen)
