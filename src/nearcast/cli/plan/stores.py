"""`nearcast plan stores`: which nodes get a store, and which topics each store keeps."""

from __future__ import annotations

import json
import math
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nearcast.cli.progress import progress
from nearcast.cli.tables import Column, Ids, Table, read_table, write_table
from nearcast.errors import InputError
from nearcast.placement import storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["stores"]

EDGES = (Column("a", "text"), Column("b", "text"), Column("cost", optional=True))
DEMAND = (Column("node", "text"), Column("topic", "text"), Column("rate"))
REPLICAS = (Column("topic", "text"), Column("replicas", "integer", minimum=1))
SIZES = (Column("topic", "text"), Column("size"))
PUBLISHERS = (Column("node", "text"), Column("rate"))
EXACT_LIMIT = 20_000  # nodes x nodes x topics; beyond it the solver takes minutes
KICKS_LIMIT = 10_000  # nodes x topics; beyond it one descent is all there is time for


class Engine(StrEnum):
    """Where the heavy part is done."""

    memory = "memory"
    spark = "spark"


class Assign(StrEnum):
    """How replicas are assigned to stores."""

    sequential = "sequential"
    wrr = "wrr"
    refined = "refined"
    exact = "exact"
    random = "random"
    greedy = "greedy"


def stores(
    edges: Annotated[Path, typer.Option(help="a,b[,cost]: the links; CSV or Parquet, as all tables")],
    demand: Annotated[Path, typer.Option(help="node,topic,rate: requests for a topic's past at a node")],
    count: Annotated[int, typer.Option("--stores", help="M: how many nodes get a store")],
    capacity: Annotated[float, typer.Option(help="L: how many topics (or how much size) a store holds")],
    min_replicas: Annotated[
        int | None,
        typer.Option(help="Least replicas per topic, 1 unless told; more by its share of requests"),
    ] = None,
    replicas: Annotated[Path | None, typer.Option(help="topic,replicas: instead of --min-replicas")] = None,
    sizes: Annotated[Path | None, typer.Option(help="topic,size: topics not in it have size 1")] = None,
    publishers: Annotated[Path | None, typer.Option(help="node,rate: where publications enter")] = None,
    assign: Annotated[
        Assign, typer.Option(help="greedy ignores --stores and --capacity; exact is for small instances")
    ] = Assign.wrr,
    out: Annotated[Path | None, typer.Option(help="topic,store; standard output if left out")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For random and refined.")] = 0,
    engine: Annotated[Engine, typer.Option(help="spark: topics choose in parallel, for sequential and wrr")] = (
        Engine.memory
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Choose nodes for stores and topics for each store, so that requests travel few hops."""
    if replicas is not None and min_replicas is not None:
        raise InputError("--min-replicas and --replicas exclude each other")
    if not (math.isfinite(capacity) and capacity > 0):
        raise InputError(f"--capacity is {capacity:g}; a finite number above 0 is needed")
    network, nodes = _network(read_table(edges, EDGES))
    if not 1 <= count <= network.nodes:
        raise InputError(f"{edges}, row 0: --stores is {count}; with these links 1 to {network.nodes} are possible")
    asked = read_table(demand, DEMAND, key=["node", "topic"])
    topics = Ids("topic", demand, np.array(list(dict.fromkeys(asked["topic"])), dtype=object))
    rates = np.zeros((len(topics.names), network.nodes))
    rates[topics.positions(asked, "topic"), nodes.positions(asked, "node")] = asked["rate"]

    size = _sizes(sizes, topics, capacity)
    try:
        if replicas is None:
            weights = storage.topic_weights(rates)
            least = 1 if min_replicas is None else min_replicas
            if least < 1:
                raise InputError(f"--min-replicas is {least}; at least 1 is needed")
            degrees = storage.weighted_degrees(weights, least, count, capacity, size)
        else:
            degrees = _replicas(replicas, topics, count)
        publication = _publication(publishers, nodes)
        problem = storage.StorageProblem(network, rates, count, capacity, degrees, size, publication)
        started = time.perf_counter()
        with progress("placing stores") as advance:
            plan = _plan_by_spark(assign, problem) if engine is Engine.spark else _plan(assign, problem, seed, advance)
    except InputError as error:
        if str(error).startswith(("capacity too small", "at least")):
            raise InputError(f"{demand}, row 0: {error}") from None
        raise
    metrics = {
        "method": assign.value,
        "stores": nodes.names[plan.stores].tolist(),
        "traffic": plan.traffic,
        "mean_hops": plan.mean_hops,
        "seconds": time.perf_counter() - started,
    }
    topic, store = np.nonzero(plan.placed)
    if out or not as_json:
        write_table(out, {"topic": topics.names[topic], "store": nodes.names[store]})
    if as_json:
        print(json.dumps(metrics))


def _plan_by_spark(assign: Assign, problem: storage.StorageProblem) -> storage.StoragePlan:
    if assign not in (Assign.sequential, Assign.wrr):
        raise InputError(f"--engine spark is for --assign sequential and wrr; --assign is {assign.value}")
    from nearcast.cluster.analytics.parallel_planners import stores
    from nearcast.cluster.session import spark_session

    return stores(spark_session("nearcast plan stores"), problem, assign.value)


def _plan(
    assign: Assign, problem: storage.StorageProblem, seed: int, advance: Callable[[float], None]
) -> storage.StoragePlan:
    topics, nodes = problem.demand.shape
    match assign:
        case Assign.sequential:
            return storage.sequential(problem, advance)
        case Assign.wrr:
            return storage.wrr(problem, advance)
        case Assign.random:
            return storage.random(problem, seed, advance)
        case Assign.greedy:
            return storage.greedy_unconstrained(problem, advance)
        case Assign.refined:
            kicks = 20 if topics * nodes <= KICKS_LIMIT else 0
            return storage.refined(problem, storage.wrr(problem, advance), seed=seed, kicks=kicks)
        case Assign.exact:
            if (size := topics * nodes**2) > EXACT_LIMIT:
                raise InputError(f"--assign exact takes up to {EXACT_LIMIT} nodes x nodes x topics; these are {size}")
            return storage.exact(problem)


def _network(table: Table) -> tuple[storage.Network, Ids]:
    names = np.array(list(dict.fromkeys([*table["a"], *table["b"]])), dtype=object)
    nodes = Ids("node", table.path, names)
    a, b = nodes.positions(table, "a"), nodes.positions(table, "b")
    if (loops := np.flatnonzero(a == b)).size:
        table.refuse(int(loops[0]), f"the link goes from {table['a'][loops[0]]!r} to itself")
    links = np.sort(np.stack([a, b], axis=1), axis=1)
    _, first, which = np.unique(links, axis=0, return_index=True, return_inverse=True)
    if (again := np.flatnonzero(first[which] != np.arange(table.rows))).size:
        row = int(again[0])
        here = f"link {table['a'][row]!r}, {table['b'][row]!r}"
        table.refuse(row, f"{here} is there twice, first in row {first[which][row] + 1}")
    cost = table["cost"] if "cost" in table else np.ones(table.rows)
    if (free := np.flatnonzero(cost == 0)).size:
        table.refuse(int(free[0]), "cost is 0; more than 0 is needed")
    parts = connected_components(coo_array((cost, (a, b)), shape=(len(names),) * 2), directed=False)[1]
    if (apart := np.flatnonzero(parts[a] != parts[a[0]])).size:
        row = int(apart[0])
        table.refuse(row, f"{table['a'][row]!r} cannot be reached from {names[0]!r}")
    return storage.from_edges(len(names), a, b, cost), nodes


def _replicas(path: Path, topics: Ids, count: int) -> NDArray[np.int64]:
    table = read_table(path, REPLICAS, key=["topic"])
    positions = topics.positions(table, "topic")
    if (many := np.flatnonzero(table["replicas"] > count)).size:
        row = int(many[0])
        table.refuse(row, f"{table['replicas'][row]} replicas are more than --stores {count}")
    degrees = np.zeros(len(topics.names), dtype=np.int64)
    degrees[positions] = table["replicas"]
    if (none := np.flatnonzero(degrees == 0)).size:
        raise InputError(f"{path}, row 0: topic {topics.names[none[0]]!r} of {topics.source} is missing")
    return degrees


def _sizes(path: Path | None, topics: Ids, capacity: float) -> NDArray[np.float64]:
    size = np.ones(len(topics.names))
    if path is not None:
        table = read_table(path, SIZES, key=["topic"])
        size[topics.positions(table, "topic")] = table["size"]
        if (big := np.flatnonzero(table["size"] > capacity)).size:
            row = int(big[0])
            table.refuse(row, f"size {table['size'][row]:g} is more than --capacity {capacity:g}")
    if (size > capacity).any():
        raise InputError(f"{topics.source}, row 0: capacity too small: a topic has size 1, --capacity is {capacity:g}")
    return size


def _publication(path: Path | None, nodes: Ids) -> NDArray[np.float64]:
    share = np.full(len(nodes.names), 1 / len(nodes.names))
    if path is not None:
        table = read_table(path, PUBLISHERS, key=["node"])
        share = np.zeros(len(nodes.names))
        share[nodes.positions(table, "node")] = table["rate"]
        if not share.any():
            table.refuse(0, "no rate is above 0; publications must enter somewhere")
    return share
