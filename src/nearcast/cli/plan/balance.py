"""`nearcast plan balance`: which broker each subscriber connects to."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.progress import progress
from nearcast.cli.tables import Column, Ids, read_table, write_table
from nearcast.errors import InputError
from nearcast.placement import balance as balancing

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["balance"]

BROKERS = (
    Column("broker", "text"),
    Column("x_km", optional=True, minimum=None),
    Column("y_km", optional=True, minimum=None),
)
SUBSCRIPTIONS = (Column("subscriber", "text"), Column("subscription", "text"))
RATES = (Column("subscription", "text"), Column("rate"))
CURRENT = (Column("subscriber", "text"), Column("broker", "text"))
DEFAULT = balancing.Thresholds()


class Method(StrEnum):
    """How to balance."""

    ldm = "ldm"
    sdm = "sdm"
    gsh = "gsh"
    staged = "staged"
    refined = "refined"
    grouped = "grouped"


def balance(
    brokers: Annotated[Path, typer.Option(help="broker[,x_km,y_km]; CSV or Parquet, as all tables")],
    subscriptions: Annotated[Path, typer.Option(help="subscriber,subscription: who asked for what")],
    rates: Annotated[Path, typer.Option(help="subscription,rate: data per second, in any unit")],
    current: Annotated[Path, typer.Option(help="subscriber,broker: where each subscriber is now")],
    method: Annotated[
        Method, typer.Option(help="ldm, sdm, grouped: migrate; gsh: shuffle; staged: both by thresholds")
    ] = Method.staged,
    alpha: Annotated[float, typer.Option(help="Migrate while the loads' variation is above this")] = DEFAULT.alpha,
    beta: Annotated[float, typer.Option(help="... and the mean load above this")] = DEFAULT.beta,
    gamma: Annotated[float, typer.Option(help="Staged: shuffle if the variation is above this")] = DEFAULT.gamma,
    theta: Annotated[float, typer.Option(help="... and the mean load above this")] = DEFAULT.theta,
    out: Annotated[Path | None, typer.Option(help="subscriber,broker; standard output if left out")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the groups of grouped and refined.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Move subscribers between brokers so that the most loaded broker carries less.

    A broker's load is what it fetches, once per subscription somebody there has, and what it sends to each.
    """
    for name, value in {"alpha": alpha, "beta": beta, "gamma": gamma, "theta": theta}.items():
        if not 0 <= value < float("inf"):
            raise InputError(f"--{name} is {value:g}; a finite number of at least 0 is needed")
    broker_ids = Ids("broker", brokers, read_table(brokers, BROKERS, key=["broker"])["broker"])
    now = read_table(current, CURRENT, key=["subscriber"])
    placed = broker_ids.positions(now, "broker")
    subscribers = Ids("subscriber", current, now["subscriber"])
    problem = _read_problem(subscriptions, subscribers, rates, len(broker_ids.names))

    started = time.perf_counter()
    with progress("balancing") as advance:
        thresholds = balancing.Thresholds(alpha, beta, gamma, theta)
        plan = _plan(method, problem, placed, thresholds, seed, advance)
        bound = balancing.lower_bound(problem)
    metrics = {
        "method": method.value,
        "max_load_before": float(plan.loads_before.max()),
        "max_load_after": plan.max_load,
        "cov_before": balancing.cov(plan.loads_before),
        "cov_after": balancing.cov(plan.loads),
        "lower_bound": bound,
        "moves": plan.moves,
        "seconds": time.perf_counter() - started,
    }
    if out or not as_json:
        write_table(out, {"subscriber": now["subscriber"], "broker": broker_ids.names[plan.assignment]})
    if as_json:
        print(json.dumps(metrics))


def _read_problem(subscriptions: Path, subscribers: Ids, rates: Path, brokers: int) -> balancing.BalanceProblem:
    """In a function of its own, so that the table, which can be large, is gone when planning starts."""
    rate = read_table(rates, RATES, key=["subscription"])
    pairs = read_table(subscriptions, SUBSCRIPTIONS, key=["subscriber", "subscription"])
    return balancing.from_pairs(
        subscribers.positions(pairs, "subscriber"),
        Ids("subscription", rates, rate["subscription"]).positions(pairs, "subscription"),
        rate["rate"],
        subscribers=len(subscribers.names),
        sites=brokers,
    )


def _plan(
    method: Method,
    problem: balancing.BalanceProblem,
    current: NDArray[np.int64],
    thresholds: balancing.Thresholds,
    seed: int,
    advance: Callable[[float], None],
) -> balancing.BalancePlan:
    alpha, beta = thresholds.alpha, thresholds.beta
    match method:
        case Method.ldm:
            return balancing.ldm(problem, current, alpha=alpha, beta=beta)
        case Method.sdm:
            return balancing.sdm(problem, current, alpha=alpha, beta=beta)
        case Method.grouped:
            return balancing.grouped(problem, current, alpha=alpha, beta=beta, seed=seed)
        case Method.gsh:
            return balancing.gsh(problem, current, advance)
        case Method.staged:
            return balancing.staged(problem, current, thresholds)
        case Method.refined:
            return balancing.refined(problem, current, seed=seed, advance=advance)
