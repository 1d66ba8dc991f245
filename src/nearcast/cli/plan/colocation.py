"""`nearcast plan colocation`: which topics share a broker."""

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from threadpoolctl import threadpool_limits

from nearcast.cli.model import load_model
from nearcast.cli.progress import progress
from nearcast.cli.tables import Column, Ids, Table, read_table, write_table
from nearcast.errors import InputError
from nearcast.placement.colocation.exact import exact
from nearcast.placement.colocation.incremental import NEW, adjusted
from nearcast.placement.colocation.latency_model import LatencyModel
from nearcast.placement.colocation.planners import ffd, hybrid, lfs, matching
from nearcast.placement.colocation.problem import (
    ColocationPlan,
    ColocationTopics,
    Feasibility,
    InfeasibleTopicError,
    feasibility,
)
from nearcast.placement.colocation.refined import refined

__all__ = ["colocation"]


class Method(StrEnum):
    FFD = "ffd"
    LFS = "lfs"
    HYBRID = "hybrid"
    MATCHING = "matching"
    REFINED = "refined"
    EXACT = "exact"


def colocation(
    topics: Annotated[Path, typer.Option(help="CSV or Parquet: topic, rate (1/s), processing_ms[, bound_ms].")],
    model: Annotated[Path, typer.Option(help="Folder that `nearcast model train` made.")],
    k: Annotated[int, typer.Option(min=1, help="Most topics on one broker.")] = 6,
    method: Annotated[Method, typer.Option(help="The planner.")] = Method.REFINED,
    seed_size: Annotated[int, typer.Option(min=1, help="hybrid: size k' of the sets that brokers start with.")] = 3,
    bound_ms: Annotated[float, typer.Option(help="Latency bound of topics that have none of their own.")] = 1000.0,
    margin: Annotated[float, typer.Option(help="Share of every bound that is kept free for the model's error.")] = 0.1,
    current: Annotated[
        Path | None, typer.Option(help="topic, broker: adjust this plan, moving as few topics as possible.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where topic, broker go; standard output if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Not used: no planner here draws lots.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the metrics.")] = False,
) -> None:
    """Put topics on as few brokers as possible, each within its latency bound, by a learned latency model."""
    del seed
    if not 0 <= margin < 1:
        raise InputError(f"--margin is {margin:g}; at least 0 and less than 1 is needed")
    if not 0 < bound_ms < np.inf:
        raise InputError(f"--bound-ms is {bound_ms:g}; more than 0 is needed")
    table = _read_topics(topics)
    bounds = table["bound_ms"] if "bound_ms" in table else np.full(table.rows, bound_ms)
    known = ColocationTopics(table["rate"], table["processing_ms"], bounds)
    learned = load_model(model)
    _warn_outside(learned, known)
    start = time.perf_counter()
    try:
        possible = feasibility(learned, known, margin)
    except InfeasibleTopicError as error:
        table.refuse(error.topic, f"topic {table['topic'][error.topic]!r}: {error.reason}")
    with progress("Planning"), threadpool_limits(1):  # small matrices: threads would only wait for each other
        if current is None:
            plan = _planned(possible, k, method, seed_size)
        else:
            plan = adjusted(possible, k, _read_current(current, table))
    seconds = time.perf_counter() - start
    if out is not None or not as_json:
        write_table(out, {"topic": table["topic"], "broker": plan.worker})
    if as_json:
        metrics = {
            "method": "adjusted" if current else method.value,
            "brokers": plan.workers,
            "predicted_violations": plan.violations,
            "seconds": seconds,
        }
        print(json.dumps(metrics))


def _planned(possible: Feasibility, k: int, method: Method, seed_size: int) -> ColocationPlan:
    if method is Method.HYBRID:
        return hybrid(possible, k, seed_size)
    if method is Method.MATCHING:
        if k != 2:
            raise InputError(f"--method matching is for --k 2, not {k}")
        return matching(possible)
    planners = {Method.FFD: ffd, Method.LFS: lfs, Method.REFINED: refined, Method.EXACT: exact}
    return planners[method](possible, k)


def _read_topics(path: Path) -> Table:
    columns = [
        Column("topic", "text"),
        Column("rate"),
        Column("processing_ms"),
        Column("bound_ms", optional=True),
    ]
    table = read_table(path, columns, key=["topic"])
    for name in ("rate", "processing_ms", "bound_ms"):
        if name in table and (table[name] <= 0).any():
            table.refuse(int(np.argmax(table[name] <= 0)), f"{name} is 0; more than 0 is needed")
    return table


def _read_current(path: Path, topics: Table) -> np.ndarray:
    """The broker of each topic in the plan in force; topics of it that are gone are left out."""
    columns = [Column("topic", "text"), Column("broker", "integer")]
    table = read_table(path, columns, key=["topic"])
    here = np.isin(table["topic"].astype(str), topics["topic"].astype(str))
    kept = Table(path, int(here.sum()), {"topic": pa.array(table["topic"][here]), "broker": table["broker"][here]})
    current = np.full(topics.rows, NEW)
    if kept.rows:
        current[Ids("topic", topics.path, topics["topic"]).positions(kept, "topic")] = kept["broker"]
    return current


def _warn_outside(model: LatencyModel, topics: ColocationTopics) -> None:
    low, high = model.isolated.low, model.isolated.high
    features = np.stack([topics.processing_ms, topics.rate], axis=1)
    outside = int(((features < low * 0.9) | (features > high * 1.1)).any(axis=1).sum())
    if outside:
        learned = f"processing {low[0]:.3g} to {high[0]:.3g} ms, rate {low[1]:.3g} to {high[1]:.3g}/s"
        print(
            f"nearcast: warning: {outside} topics are outside what the model has learned ({learned}); "
            "their predictions are guesses",
            file=sys.stderr,
        )
