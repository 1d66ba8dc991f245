"""`nearcast plan balance`: which site each subscriber connects to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearcast.cli.plan.command import JsonOption, OutOption, SeedOption, plan_and_write
from nearcast.cli.tables import Column, Ids, read_table
from nearcast.errors import InputError
from nearcast.placement import balance as planners

if TYPE_CHECKING:
    from nearcast.placement.progress import Advance

__all__ = ["balance"]

Method = Literal["ldm", "sdm", "gsh", "staged", "refined", "grouped"]
SITE = Column("site", "text", alias="broker")
SUBSCRIPTIONS = (Column("subscriber", "text"), Column("subscription", "text"))
RATES = (Column("subscription", "text"), Column("rate"))
CURRENT = (Column("subscriber", "text"), SITE)
DEFAULT = planners.Thresholds()


def balance(
    sites: Annotated[Path, typer.Option("--sites", "--brokers", help="site; CSV or Parquet, as all tables")],
    subscriptions: Annotated[Path, typer.Option(help="subscriber,subscription")],
    rates: Annotated[Path, typer.Option(help="subscription,rate: data per second, in any unit")],
    current: Annotated[Path, typer.Option(help="subscriber,site: where each subscriber is now")],
    method: Annotated[
        Method, typer.Option(help="ldm, sdm, grouped: migrate; gsh: shuffle; staged: both by thresholds")
    ] = "staged",
    alpha: Annotated[float, typer.Option(help="Migrate while the loads' variation is above this")] = DEFAULT.alpha,
    beta: Annotated[float, typer.Option(help="... and the mean load above this")] = DEFAULT.beta,
    gamma: Annotated[float, typer.Option(help="Staged: shuffle if the variation is above this")] = DEFAULT.gamma,
    theta: Annotated[float, typer.Option(help="... and the mean load above this")] = DEFAULT.theta,
    out: OutOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Move subscribers between sites so that the highest load of a site falls.

    A site's load is each subscription held there, received once, and what it sends to each subscriber. The plan
    has the columns subscriber,site. Older tables may call the site's column broker.
    """
    thresholds = {"alpha": alpha, "beta": beta, "gamma": gamma, "theta": theta}
    for name, value in thresholds.items():
        if not 0 <= value < float("inf"):
            raise InputError(f"--{name} is {value:g}; a finite number of at least 0 is needed")
    site_ids = Ids("site", sites, read_table(sites, [SITE], key=["site"])["site"])
    now = read_table(current, CURRENT, key=["subscriber"])
    at = site_ids.positions(now, "site")
    problem = _read_problem(
        subscriptions, Ids("subscriber", current, now["subscriber"]), rates, sites=len(site_ids.names)
    )

    def plan(advance: Advance) -> tuple[planners.BalancePlan, float]:
        migration = {"alpha": alpha, "beta": beta}
        methods = {
            "ldm": lambda: planners.ldm(problem, at, **migration),
            "sdm": lambda: planners.sdm(problem, at, **migration),
            "grouped": lambda: planners.grouped(problem, at, seed=seed, **migration),
            "gsh": lambda: planners.gsh(problem, at, advance),
            "staged": lambda: planners.staged(problem, at, planners.Thresholds(**thresholds)),
            "refined": lambda: planners.refined(problem, at, seed=seed, advance=advance),
        }
        return methods[method](), planners.lower_bound(problem)

    def describe(planned: tuple[planners.BalancePlan, float]) -> tuple[dict[str, Any], dict[str, Any]]:
        plan, bound = planned
        return {"subscriber": now["subscriber"], "site": site_ids.names[plan.assignment]}, {
            "max_load_before": float(plan.loads_before.max()),
            "max_load_after": plan.max_load,
            "cov_before": planners.cov(plan.loads_before),
            "cov_after": planners.cov(plan.loads),
            "lower_bound": bound,
            "moves": plan.moves,
        }

    plan_and_write("balancing", plan, describe, method=method, out=out, as_json=as_json)


def _read_problem(subscriptions: Path, subscribers: Ids, rates: Path, *, sites: int) -> planners.BalanceProblem:
    """In a function of its own, so that the table, which can be large, is released before planning starts."""
    rate = read_table(rates, RATES, key=["subscription"])
    pairs = read_table(subscriptions, SUBSCRIPTIONS, key=["subscriber", "subscription"])
    return planners.from_pairs(
        subscribers.positions(pairs, "subscriber"),
        Ids("subscription", rates, rate["subscription"]).positions(pairs, "subscription"),
        rate["rate"],
        subscribers=len(subscribers.names),
        sites=sites,
    )
