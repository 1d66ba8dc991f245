"""`nearcast plan colocation`: which topics share a worker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from threadpoolctl import threadpool_limits

from nearcast.cli.model import load_model
from nearcast.cli.plan.command import JsonOption, OutOption, plan_and_write
from nearcast.cli.tables import Column, Ids, Table, read_table
from nearcast.errors import InputError
from nearcast.placement import colocation as planners
from nearcast.placement.colocation.incremental import NEW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.placement.progress import Advance

__all__ = ["colocation"]

Method = Literal["ffd", "lfs", "hybrid", "matching", "refined", "exact"]
TOPICS = (
    Column("topic", "text"),
    Column("rate", positive=True),
    Column("processing_ms", positive=True),
    Column("bound_ms", optional=True, positive=True),
)
CURRENT = (Column("topic", "text"), Column("worker", "integer", alias="broker"))


def colocation(
    topics: Annotated[Path, typer.Option(help="topic,rate,processing_ms[,bound_ms]; rate in 1/s; CSV or Parquet")],
    model: Annotated[Path, typer.Option(help="Folder that `nearcast model train` made.")],
    k: Annotated[int, typer.Option(min=1, help="Most topics of one worker.")] = 6,
    method: Annotated[Method, typer.Option(help="The planner.")] = "refined",
    seed_size: Annotated[int, typer.Option(min=1, help="hybrid: size k' of the sets that workers start with.")] = 3,
    bound_ms: Annotated[float, typer.Option(help="Latency bound of topics that have none of their own.")] = 1000.0,
    margin: Annotated[float, typer.Option(help="Share of every bound that is kept free for the model's error.")] = 0.1,
    current: Annotated[
        Path | None, typer.Option(help="topic,worker: adjust this plan, moving as few topics as possible.")
    ] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Assign topics to as few workers as possible, each within its latency bound, by a learned latency model.

    The plan has the columns topic,worker. An older plan may call the worker's column broker.
    """
    if not 0 <= margin < 1:
        raise InputError(f"--margin is {margin:g}; at least 0 and less than 1 is needed")
    if not 0 < bound_ms < np.inf:
        raise InputError(f"--bound-ms is {bound_ms:g}; more than 0 is needed")
    if method == "matching" and k != 2 and current is None:
        raise InputError(f"--method matching is for --k 2, not {k}")
    table = read_table(topics, TOPICS, key=["topic"])
    bounds = table["bound_ms"] if "bound_ms" in table else np.full(table.rows, bound_ms)
    known = planners.ColocationTopics(table["rate"], table["processing_ms"], bounds)
    learned = load_model(model)
    _warn_outside(learned, known)

    def plan(_: Advance) -> planners.ColocationPlan:
        try:
            possible = planners.feasibility(learned, known, margin)
        except planners.InfeasibleTopicError as error:
            table.refuse(error.topic, f"topic {table['topic'][error.topic]!r}: {error.reason}")
        methods = {
            "ffd": lambda: planners.ffd(possible, k),
            "lfs": lambda: planners.lfs(possible, k),
            "hybrid": lambda: planners.hybrid(possible, k, seed_size),
            "matching": lambda: planners.matching(possible),
            "refined": lambda: planners.refined(possible, k),
            "exact": lambda: planners.exact(possible, k),
        }
        with threadpool_limits(1):  # small matrices: threads would only wait for each other
            if current is not None:
                return planners.adjusted(possible, k, _read_current(current, table))
            return methods[method]()

    def describe(plan: planners.ColocationPlan) -> tuple[dict[str, Any], dict[str, Any]]:
        metrics = {"workers": plan.workers, "predicted_violations": plan.violations}
        return {"topic": table["topic"], "worker": plan.worker}, metrics

    used = "adjusted" if current else method
    plan_and_write("planning", plan, describe, method=used, out=out, as_json=as_json)


def _read_current(path: Path, topics: Table) -> NDArray[np.int64]:
    """The worker of each topic in the plan in force; its topics that are gone are left out."""
    table = read_table(path, CURRENT, key=["topic"])
    kept = table.where(np.isin(table["topic"].astype(str), topics["topic"].astype(str)))
    current = np.full(topics.rows, NEW)
    if kept.rows:
        current[Ids("topic", topics.path, topics["topic"]).positions(kept, "topic")] = kept["worker"]
    return current


def _warn_outside(model: planners.LatencyModel, topics: planners.ColocationTopics) -> None:
    low, high = model.isolated.low, model.isolated.high
    features = np.stack([topics.processing_ms, topics.rate], axis=1)
    outside = int(((features < low * 0.9) | (features > high * 1.1)).any(axis=1).sum())
    if outside:
        learned = f"processing {low[0]:.3g} to {high[0]:.3g} ms, rate {low[1]:.3g} to {high[1]:.3g}/s"
        reason = f"{outside} topics are outside the range the model was trained on ({learned})"
        print(f"nearcast: warning: {reason}; their predictions are extrapolated", file=sys.stderr)
