"""`nearcast plan stores`: which nodes get a store, and which topics each store keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nearcast.cli.plan.command import Engine, JsonOption, OutOption, SeedOption, plan_and_write
from nearcast.cli.tables import Column, Ids, Table, read_table, write_table
from nearcast.errors import InputError
from nearcast.placement import storage as planners

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.placement.progress import Advance

__all__ = ["stores"]

Assign = Literal["sequential", "wrr", "refined", "exact", "random", "greedy"]
EDGES = (Column("a", "text"), Column("b", "text"), Column("cost", optional=True, positive=True, maximum=1e15))
LARGEST = 1e15  # of rates, sizes and costs: their sums stay exact enough
DEMAND = (Column("node", "text"), Column("topic", "text"), Column("rate", maximum=LARGEST))
PLACED = (Column("topic", "text"), Column("store", "text"))
REPLICAS = (Column("topic", "text"), Column("replicas", "integer", minimum=1))
SIZES = (Column("topic", "text"), Column("size", maximum=LARGEST))
PUBLISHERS = (Column("node", "text"), Column("rate", maximum=LARGEST))
EXACT_LIMIT = 20_000  # nodes x nodes x topics; beyond it the solver takes minutes
DOWN_DRAWS = 20
PERTURBATIONS_LIMIT = 10_000  # nodes x topics; beyond it there is time for one descent only


def stores(
    edges: Annotated[Path, typer.Option(help="a,b[,cost]: the links; CSV or Parquet, as all tables")],
    demand: Annotated[Path, typer.Option(help="node,topic,rate: requests for a topic's history at a node")],
    capacity: Annotated[float, typer.Option(help="L: how many topics (or how much size) a store holds")],
    count: Annotated[
        int | None,
        typer.Option("--stores", help="M: how many nodes get a store; chosen (the knee of the cost) if not given"),
    ] = None,
    min_replicas: Annotated[
        int | None, typer.Option(help="Least replicas per topic, 1 by default; more by its share of requests")
    ] = None,
    replicas: Annotated[Path | None, typer.Option(help="topic,replicas: instead of --min-replicas")] = None,
    sizes: Annotated[Path | None, typer.Option(help="topic,size: topics not in it have size 1")] = None,
    publishers: Annotated[Path | None, typer.Option(help="node,rate: where publications enter")] = None,
    assign: Annotated[
        Assign, typer.Option(help="greedy ignores --stores and --capacity; exact is for small instances")
    ] = "wrr",
    failure: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="Probability that a store is down; refined then spreads replicas")
    ] = 0.0,
    down: Annotated[int, typer.Option(min=0, help="Report the hops with so many stores down, 20 random sets")] = 0,
    current: Annotated[
        Path | None,
        typer.Option(help="topic,store: today's plan; its stores stay, topics are reassigned if that helps"),
    ] = None,
    lost: Annotated[
        list[str] | None,
        typer.Option(help="A store of --current that is gone; the others take over its topics. May be repeated."),
    ] = None,
    moves: Annotated[
        Path | None, typer.Option(help="With --current: also write topic,store,change; change is add or remove")
    ] = None,
    out: OutOption = None,
    seed: SeedOption = 0,
    engine: Annotated[Engine, typer.Option(help="spark: topics choose in parallel, for sequential and wrr")] = "memory",
    as_json: JsonOption = False,
) -> None:
    """Choose nodes for stores and topics for each store, so that requests travel few hops.

    The plan has the columns topic,store.

    Example: nearcast plan stores --edges edges.csv --demand demand.csv --capacity 100 --out stores.csv
    """
    if replicas is not None and min_replicas is not None:
        raise InputError("--min-replicas and --replicas exclude each other")
    if not 0 < capacity <= LARGEST:
        raise InputError(f"--capacity is {capacity:g}; a number above 0 and up to {LARGEST:g} is needed")
    if engine == "spark" and assign not in ("sequential", "wrr"):
        raise InputError(f"--engine spark is for --assign sequential and wrr; --assign is {assign}")
    if failure and assign != "refined":
        raise InputError(f"--failure is for --assign refined; --assign is {assign}")
    if current is not None and (assign not in ("sequential", "wrr", "refined") or engine == "spark"):
        raise InputError("--current is for --assign sequential, wrr and refined, and --engine memory")
    if current is None and (lost or moves is not None):
        raise InputError(f"{'--lost' if lost else '--moves'} needs --current: what the stores hold today")
    network, nodes = _network(read_table(edges, EDGES))
    if count is not None and not 1 <= count <= network.nodes:
        raise InputError(f"{edges}, row 0: --stores is {count}; with these links 1 to {network.nodes} are possible")
    asked = read_table(demand, DEMAND, key=["node", "topic"])
    topics = Ids("topic", demand, np.array(list(dict.fromkeys(asked["topic"])), dtype=object))
    rates = np.zeros((len(topics.names), network.nodes))
    rates[topics.positions(asked, "topic"), nodes.positions(asked, "node")] = asked["rate"]
    size = _sizes(sizes, topics, capacity)
    least = 1 if min_replicas is None else min_replicas
    if least < 1:
        raise InputError(f"--min-replicas is {least}; at least 1 is needed")
    publication = _publication(publishers, nodes)
    today = None if current is None else _today(current, lost or [], topics, nodes)
    if today is not None:
        if count is not None and count < len(today.stores):
            raise InputError(f"--stores is {count}; {current} has {len(today.stores)} stores, which stay")
        count = len(today.stores)
    given = None if replicas is None else _replicas(replicas, topics, count or network.nodes)

    def problem_with(stores: int) -> planners.StorageProblem:
        degrees = given
        if degrees is None:
            degrees = planners.weighted_degrees(planners.topic_weights(rates), least, stores, capacity, size)
        return planners.StorageProblem(network, rates, stores, capacity, degrees, size, publication)

    def plan(advance: Advance) -> planners.StoragePlan:
        problem = chosen_problem(advance)
        result = planned(problem, advance)
        if down:
            if down >= len(result.stores):
                raise InputError(f"--down is {down}; the plan has {len(result.stores)} stores, and one must be left")
            figures["down"] = planners.random_failures(problem, result, down, DOWN_DRAWS, seed)
        if today is not None:
            figures["before"] = planners.fail(problem, today.placed, today.lost)
        return result

    figures: dict[str, planners.Failure] = {}

    def chosen_problem(advance: Advance) -> planners.StorageProblem:
        if count is not None:
            return problem_with(count)
        needed = math.ceil(float(size @ (np.full(len(size), least) if given is None else given)) / capacity - 1e-9)
        fewest = max(needed, least if given is None else int(given.max()))
        if fewest > network.nodes:
            problem_with(network.nodes)  # says what does not fit
        return problem_with(
            planners.store_count(fewest, network.nodes, lambda m: planners.wrr(problem_with(m), advance).traffic)
        )

    def planned(problem: planners.StorageProblem, advance: Advance) -> planners.StoragePlan:
        free_from = None if given is not None else least  # degrees that may change, from there on
        if today is not None and assign in ("sequential", "wrr", "refined"):
            return planners.reassign(
                problem, today.stores, assign, advance, today.placed, min_replicas=free_from, failure=failure
            )
        if engine == "spark":
            from nearcast.cluster.analytics import parallel_planners
            from nearcast.cluster.spark_session import spark_session

            return parallel_planners.stores(spark_session("nearcast plan stores"), problem, assign)
        if assign == "exact" and rates.size * network.nodes > EXACT_LIMIT:
            found = rates.size * network.nodes
            raise InputError(f"--assign exact takes up to {EXACT_LIMIT} nodes x nodes x topics; these are {found}")
        perturbations = 20 if rates.size <= PERTURBATIONS_LIMIT else 0
        methods = {
            "sequential": lambda: planners.sequential(problem, advance),
            "wrr": lambda: planners.wrr(problem, advance),
            "random": lambda: planners.random(problem, seed, advance),
            "greedy": lambda: planners.greedy_unconstrained(problem, advance),
            "refined": lambda: planners.refined(
                problem,
                planners.wrr(problem, advance),
                seed=seed,
                perturbations=perturbations,
                failure=failure,
                min_replicas=free_from,
            ),
            "exact": lambda: planners.exact(problem),
        }
        return methods[assign]()

    def describe(plan: planners.StoragePlan) -> tuple[dict[str, Any], dict[str, Any]]:
        if today is not None and moves is not None:
            write_table(moves, _changes(today, plan, topics, nodes))
        topic, store = np.nonzero(plan.placed)
        return {"topic": topics.names[topic], "store": nodes.names[store]}, {
            "stores": nodes.names[plan.stores].tolist(),
            "traffic": plan.traffic,
            "mean_hops": plan.mean_hops,
            **{f"mean_hops_{when}": left.mean_hops for when, left in figures.items()},
            **{f"unserved_{when}": left.unserved for when, left in figures.items()},
            **({} if today is None else {"moves": int((plan.placed & ~today.placed).sum())}),
        }

    try:
        plan_and_write("placing stores", plan, describe, method=assign, out=out, as_json=as_json)
    except planners.StorageInfeasibleError as error:
        raise InputError(f"{demand}, row 0: {error}") from None


@dataclass(frozen=True)
class _Today:
    """Today's plan: `placed[t, i]` with the stores that are lost, and the stores that are left."""

    placed: NDArray[np.bool_]
    lost: NDArray[np.int64]
    stores: NDArray[np.int64]


def _today(path: Path, lost: list[str], topics: Ids, nodes: Ids) -> _Today:
    """Topics that nobody asks for any more are left out, new ones have no replica."""
    table = read_table(path, PLACED, key=["topic", "store"])
    known = set(topics.names.tolist())
    rows = np.array([name in known for name in table["topic"]], dtype=bool)
    number = {name: n for n, name in enumerate(topics.names)}
    store = nodes.positions(table, "store")
    placed = np.zeros((len(topics.names), len(nodes.names)), dtype=bool)
    placed[[number[name] for name in table["topic"][rows]], store[rows]] = True
    if not placed.any():
        table.refuse(0, f"none of its topics is a topic of {topics.source}")
    for name in lost:
        if name not in table["store"]:
            raise InputError(f"--lost is {name}; {path} has no such store")
    stores, gone = np.flatnonzero(placed.any(axis=0)), np.flatnonzero(np.isin(nodes.names, lost))
    if not len(left := np.setdiff1d(stores, gone)):
        raise InputError(f"--lost names all {len(stores)} stores of {path}; one must be left")
    return _Today(placed, gone, left)


def _changes(today: _Today, plan: planners.StoragePlan, topics: Ids, nodes: Ids) -> dict[str, NDArray[Any]]:
    """What the stores that are left are to add, and then to remove."""
    store, topic = np.nonzero((plan.placed != today.placed)[:, today.stores].T)
    store = today.stores[store]
    change = np.where(plan.placed[topic, store], "add", "remove")
    return {"topic": topics.names[topic], "store": nodes.names[store], "change": change}


def _network(table: Table) -> tuple[planners.Network, Ids]:
    names = np.array(list(dict.fromkeys([*table["a"], *table["b"]])), dtype=object)
    nodes = Ids("node", table.path, names)
    a, b = nodes.positions(table, "a"), nodes.positions(table, "b")
    table.refuse_first(a == b, lambda row: f"the link goes from {table['a'][row]!r} to itself")
    links = np.sort(np.stack([a, b], axis=1), axis=1)
    _, first, which = np.unique(links, axis=0, return_index=True, return_inverse=True)
    table.refuse_first(
        first[which] != np.arange(table.rows),
        lambda row: (
            f"link {table['a'][row]!r}, {table['b'][row]!r} is there twice, first in row {first[which][row] + 1}"
        ),
    )
    cost = table["cost"] if "cost" in table else np.ones(table.rows)
    parts = connected_components(coo_array((cost, (a, b)), shape=(len(names),) * 2), directed=False)[1]
    table.refuse_first(parts[a] != parts[a[0]], lambda row: f"{table['a'][row]!r} cannot be reached from {names[0]!r}")
    return planners.from_edges(len(names), a, b, cost), nodes


def _replicas(path: Path, topics: Ids, count: int) -> NDArray[np.int64]:
    table = read_table(path, REPLICAS, key=["topic"])
    wanted = table["replicas"]
    table.refuse_first(wanted > count, lambda row: f"{wanted[row]} replicas are more than the {count} stores")
    degrees = np.zeros(len(topics.names), dtype=np.int64)
    degrees[topics.positions(table, "topic")] = wanted
    if (none := np.flatnonzero(degrees == 0)).size:
        raise InputError(f"{path}, row 0: topic {topics.names[none[0]]!r} of {topics.source} is missing")
    return degrees


def _sizes(path: Path | None, topics: Ids, capacity: float) -> NDArray[np.float64]:
    size = np.ones(len(topics.names))
    if path is not None:
        table = read_table(path, SIZES, key=["topic"])
        given = table["size"]
        size[topics.positions(table, "topic")] = given
        table.refuse_first(given > capacity, lambda row: f"size {given[row]:g} is more than --capacity {capacity:g}")
    if (size > capacity).any():
        raise InputError(f"{topics.source}, row 0: capacity too small: a topic has size 1, --capacity is {capacity:g}")
    return size


def _publication(path: Path | None, nodes: Ids) -> NDArray[np.float64]:
    if path is None:
        return np.full(len(nodes.names), 1 / len(nodes.names))
    table = read_table(path, PUBLISHERS, key=["node"])
    share = np.zeros(len(nodes.names))
    share[nodes.positions(table, "node")] = table["rate"]
    if not share.any():
        table.refuse(0, "no rate is above 0; publications must enter somewhere")
    return share
