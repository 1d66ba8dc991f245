"""`nearcast plan balance`: which site each subscriber connects to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from nearcast.cli.plan.command import JsonOption, OutOption, SeedOption, plan_and_write
from nearcast.cli.positions import position_columns, positions
from nearcast.cli.tables import Column, Ids, Table, read_table, write_table
from nearcast.errors import InputError
from nearcast.placement import balance as planners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nearcast.placement.progress import Advance

__all__ = ["balance"]

Method = Literal["ldm", "sdm", "gsh", "staged", "refined", "grouped", "stay"]
Initial = Literal["nearest", "round_robin", "random"]
SITE = Column("site", "text", alias="broker")
SUBSCRIPTIONS = (Column("subscriber", "text"), Column("subscription", "text"))
RATES = (Column("subscription", "text"), Column("rate"))
CURRENT = (Column("subscriber", "text"), SITE)
DEFAULT = planners.Thresholds()


def balance(
    sites: Annotated[Path, typer.Option("--sites", "--brokers", help="site; CSV or Parquet, as all tables")],
    subscriptions: Annotated[Path, typer.Option(help="subscriber,subscription")],
    rates: Annotated[Path, typer.Option(help="subscription,rate: data per second, in any unit")],
    current: Annotated[Path | None, typer.Option(help="subscriber,site: where each subscriber is now")] = None,
    initial: Annotated[
        Initial | None, typer.Option(help="Place subscribers that are not in --current: nearest needs --positions")
    ] = None,
    place: Annotated[
        Path | None,
        typer.Option("--positions", help="subscriber,c0,c1,… (or x_km,y_km or lat,lon); --sites has the same columns"),
    ] = None,
    method: Annotated[
        Method,
        typer.Option(help="ldm, sdm, grouped: migrate; gsh: shuffle; staged: both by thresholds; stay: move nobody"),
    ] = "staged",
    moves_at_most: Annotated[int | None, typer.Option(min=0, help="refined: no plan with more moves")] = None,
    move_price: Annotated[
        float, typer.Option(help="refined: share of the lowest maximum load that moving everybody must save")
    ] = planners.MOVE_PRICE,
    trade_off: Annotated[
        Path | None, typer.Option(help="Also write plans that no other beats: moves,max_load,cov")
    ] = None,
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
    has the columns subscriber,site. Older tables may call the site's column broker. Subscribers without a site are
    placed first (--initial), which is no move.

    Example: nearcast plan balance --brokers b.csv --subscriptions s.csv --rates r.csv --out plan.csv
    """
    thresholds = {"alpha": alpha, "beta": beta, "gamma": gamma, "theta": theta}
    for name, value in {**thresholds, "move-price": move_price}.items():
        if not 0 <= value < float("inf"):
            raise InputError(f"--{name} is {value:g}; a finite number of at least 0 is needed")
    if current is None and initial is None:
        raise InputError("where subscribers are is not known: --current, --initial or both are needed")
    site_ids = Ids("site", sites, read_table(sites, [SITE], key=["site"])["site"])
    pairs = read_table(subscriptions, SUBSCRIPTIONS, key=["subscriber", "subscription"])
    subscribers, before = _subscribers(pairs, current, site_ids, may_be_new=initial is not None)
    at = before.copy()
    new = np.flatnonzero(before == planners.NOWHERE)
    if len(new):
        at[new] = _placed(initial, new, subscribers, sites, place, seed, len(site_ids.names))
    problem = _problem(pairs, subscribers, rates, sites=len(site_ids.names))
    del pairs  # it can be large, and planning does not need it

    def plan(advance: Advance) -> tuple[planners.BalancePlan, float]:
        migration = {"alpha": alpha, "beta": beta}
        methods = {
            "ldm": lambda: planners.ldm(problem, at, **migration),
            "sdm": lambda: planners.sdm(problem, at, **migration),
            "grouped": lambda: planners.grouped(problem, at, seed=seed, **migration),
            "gsh": lambda: planners.gsh(problem, at, advance),
            "staged": lambda: planners.staged(problem, at, planners.Thresholds(**thresholds)),
            "refined": lambda: planners.refined(
                problem, at, moves_at_most=moves_at_most, move_price=move_price, seed=seed, advance=advance
            ),
            "stay": lambda: planners.report(problem, at, at),
        }
        return methods[method](), planners.lower_bound(problem)

    def describe(planned: tuple[planners.BalancePlan, float]) -> tuple[dict[str, Any], dict[str, Any]]:
        plan, bound = planned
        return {"subscriber": subscribers.names, "site": site_ids.names[plan.assignment]}, {
            "max_load_before": float(plan.loads_before.max()),
            "max_load_after": plan.max_load,
            "cov_before": planners.cov(plan.loads_before),
            "cov_after": planners.cov(plan.loads),
            "lower_bound": bound,
            "moves": int(np.count_nonzero((plan.assignment != before) & (before != planners.NOWHERE))),
            "placed": len(new),
        }

    plan_and_write("balancing", plan, describe, method=method, out=out, as_json=as_json)
    if trade_off is not None:
        _write_trade_off(trade_off, planners.trade_off(problem, at, moves_at_most=moves_at_most, seed=seed))


def _subscribers(pairs: Table, current: Path | None, sites: Ids, *, may_be_new: bool) -> tuple[Ids, NDArray[np.int64]]:
    """Everybody in --current, then those who only subscribe, and the site of each; `NOWHERE` for the latter."""
    known, at = np.empty(0, dtype=object), np.empty(0, dtype=np.int64)
    if current is not None:
        now = read_table(current, CURRENT, key=["subscriber"])
        known, at = now["subscriber"], sites.positions(now, "site")
        if not may_be_new:
            Ids("subscriber", current, known).positions(pairs, "subscriber")  # refuses an unknown one
    asking = pa.array(pairs.columns["subscriber"]).unique()
    new = np.asarray(asking.filter(pc.invert(pc.is_in(asking, value_set=pa.array(known, pa.string())))))
    names = np.concatenate([known, new.astype(object)])
    return Ids("subscriber", current or pairs.path, names), np.r_[at, np.full(len(new), planners.NOWHERE)]


def _placed(
    initial: Initial | None,
    new: NDArray[np.int64],
    subscribers: Ids,
    sites: Path,
    place: Path | None,
    seed: int,
    count: int,
) -> NDArray[np.int64]:
    """A site for each new subscriber, by the paper's initial placements."""
    if initial == "round_robin":
        return planners.round_robin(len(new), count)
    if initial == "random":
        return planners.random(len(new), count, seed)
    if place is None:
        raise InputError("--initial nearest needs --positions")
    columns = position_columns(sites)
    there = positions(read_table(sites, [SITE, *columns], key=["site"]), columns)
    known = read_table(place, [CURRENT[0], *columns], key=["subscriber"])
    found = pc.index_in(pa.array(subscribers.names[new], pa.string()), value_set=pa.array(known.columns["subscriber"]))
    if found.null_count:
        name = subscribers.names[new[int(np.flatnonzero(np.asarray(found.is_null()))[0])]]
        raise InputError(f"{place}, row 0: no position of subscriber {name!r}")
    return planners.nearest(positions(known, columns)[np.asarray(found.to_numpy())], there)


def _problem(pairs: Table, subscribers: Ids, rates: Path, *, sites: int) -> planners.BalanceProblem:
    rate = read_table(rates, RATES, key=["subscription"])
    problem = planners.from_pairs(
        subscribers.positions(pairs, "subscriber"),
        Ids("subscription", rates, rate["subscription"]).positions(pairs, "subscription"),
        rate["rate"],
        subscribers=len(subscribers.names),
        sites=sites,
    )
    if not np.isfinite(4 * problem.outgoing.sum()):
        row = int(rate["rate"].argmax())
        rate.refuse(row, f"rate is {rate['rate'][row]:g}; all that is sent adds up to more than a float holds")
    return problem


def _write_trade_off(path: Path, plans: Sequence[planners.BalancePlan]) -> None:
    columns: dict[str, list[Any]] = {
        "moves": [plan.moves for plan in plans],
        "max_load": [plan.max_load for plan in plans],
        "cov": [planners.cov(plan.loads) for plan in plans],
    }
    write_table(path, columns)
