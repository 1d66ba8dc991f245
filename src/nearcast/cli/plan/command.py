"""What the plan commands share: options, how a planner is run and timed, and how its plan leaves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from nearcast.cli.progress_bar import progress
from nearcast.cli.tables import write_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nearcast.placement.progress import Advance

__all__ = ["Engine", "JsonOption", "OutOption", "SeedOption", "plan_and_write"]

OutOption = Annotated[Path | None, typer.Option(help="File for the plan, CSV or Parquet; standard output by default.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Decides all randomness: same seed, same plan.")]
Engine = Literal["memory", "spark"]
P = TypeVar("P")


def plan_and_write(
    label: str,
    planner: Callable[[Advance], P],
    describe: Callable[[P], tuple[Mapping[str, Any], Mapping[str, Any]]],
    *,
    method: str,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run a planner, then write its plan as a table and print its metrics.

    `planner` is given a function to report its progress to; `describe` gives the columns and the metrics of a plan.
    """
    started = time.perf_counter()
    with progress(label) as advance:
        plan = planner(advance)
    seconds = time.perf_counter() - started
    columns, metrics = describe(plan)
    if out is not None or not as_json:
        write_table(out, columns)
    if as_json:
        print(json.dumps({"method": method, **metrics, "seconds": seconds}))
