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
from nearcast.placement.colocation.worker_simulation import Arrivals, SimulatedWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from nearcast.placement.progress import Advance

__all__ = ["colocation"]

Method = Literal["ffd", "lfs", "hybrid", "matching", "refined", "exact"]
LARGEST = 1e15  # of a rate and of a processing time: their product stays finite
TOPICS = (
    Column("topic", "text"),
    Column("rate", positive=True, maximum=LARGEST),
    Column("processing_ms", positive=True, maximum=LARGEST),
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
    margin: Annotated[
        str, typer.Option(help="Share of every bound that is kept free for the model's error; auto: chosen by --check.")
    ] = "0.1",
    check: Annotated[bool, typer.Option("--check", help="Simulate the plan: how many topics would be late?")] = False,
    arrivals: Annotated[Arrivals, typer.Option(help="--check: how messages of a topic arrive.")] = "poisson",
    overhead_ms: Annotated[
        float, typer.Option(min=0, help="--check: what a real worker adds to each message (`nearcast profile worker`).")
    ] = 0.0,
    current: Annotated[
        Path | None, typer.Option(help="topic,worker: adjust this plan, moving as few topics as possible.")
    ] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Assign topics to as few workers as possible, each within its latency bound, by a learned latency model.

    The plan has the columns topic,worker. An older plan may call the worker's column broker.

    Example: nearcast plan colocation --topics topics.csv --model model.bin --out plan.csv
    """
    free = _margin(margin)
    if not 0 < bound_ms < np.inf:
        raise InputError(f"--bound-ms is {bound_ms:g}; more than 0 is needed")
    if method == "matching" and k != 2 and current is None:
        raise InputError(f"--method matching is for --k 2, not {k}")
    table = read_table(topics, TOPICS, key=["topic"])
    bounds = table["bound_ms"] if "bound_ms" in table else np.full(table.rows, bound_ms)
    known = planners.ColocationTopics(table["rate"], table["processing_ms"], bounds)
    learned = load_model(model)
    _warn_outside(learned, known)

    worker = SimulatedWorker(arrivals=arrivals, overhead_ms=overhead_ms)
    methods: dict[str, Callable[[planners.Feasibility], planners.ColocationPlan]] = {
        "ffd": lambda possible: planners.ffd(possible, k),
        "lfs": lambda possible: planners.lfs(possible, k),
        "hybrid": lambda possible: planners.hybrid(possible, k, seed_size),
        "matching": planners.matching,
        "refined": lambda possible: planners.refined(possible, k),
        "exact": lambda possible: planners.exact(possible, k),
    }
    planner = methods[method]
    if current is not None:
        before = _read_current(current, table)
        planner = lambda possible: planners.adjusted(possible, k, before)  # noqa: E731

    def plan(_: Advance) -> tuple[float, planners.ColocationPlan, planners.PlanCheck | None]:
        try:
            with threadpool_limits(1):  # small matrices: threads would only wait for each other
                if free is None:
                    found = planners.with_checked_margin(learned, known, planner, worker)
                    return found.margin, found.plan, found.check
                made = planner(planners.feasibility(learned, known, free))
                return free, made, planners.check_plan(made, known, worker) if check else None
        except planners.InfeasibleTopicError as error:
            table.refuse(error.topic, f"topic {table['topic'][error.topic]!r}: {error.reason}")

    def describe(
        planned: tuple[float, planners.ColocationPlan, planners.PlanCheck | None],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        kept_free, made, checked = planned
        metrics: dict[str, Any] = {"workers": made.workers, "predicted_violations": made.violations}
        if checked is not None:
            metrics |= {
                "margin": kept_free,
                "checked_runs": len(checked.p90_ms),
                "late_topics": checked.late_topics,
                "late_messages": checked.late_messages,
                "worst_p90_ms": float(np.nanmax(checked.p90_ms, initial=0.0)),
            }
            if not as_json:
                print(
                    f"nearcast: simulated {len(checked.p90_ms)} times with a margin of {kept_free:g}: "
                    f"{checked.late_topics:.2%} of the topics and {checked.late_messages:.2%} of the messages are late",
                    file=sys.stderr,
                )
        return {"topic": table["topic"], "worker": made.worker}, metrics

    used = "adjusted" if current else method
    plan_and_write("planning", plan, describe, method=used, out=out, as_json=as_json)


def _margin(text: str) -> float | None:
    """The share of a bound that is kept free; None for auto."""
    if text == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"--margin is {text!r}; a number or auto is needed") from None
    if not 0 <= value < 1:
        raise InputError(f"--margin is {value:g}; at least 0 and less than 1 is needed")
    return value


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
