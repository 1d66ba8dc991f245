"""`nearcast plan partition`: which broker hosts each topic."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
import typer

from nearcast.cli.progress import progress
from nearcast.cli.tables import Column, Ids, Table, read_table, write_table
from nearcast.errors import InputError
from nearcast.placement import partitioning
from nearcast.placement.partitioning.planners import pair_latencies
from nearcast.placement.partitioning.problem import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["partition"]

COORDINATE = tuple(Column(f"c{i}", minimum=None) for i in range(8))
TOPICS = (Column("topic", "text"), Column("bound_ms"), Column("rate_out"))
CLIENTS = (
    Column("topic", "text"),
    Column("client", "text"),
    Column("role", "text", choices=("pub", "sub", "both")),
    *COORDINATE,
    Column("height"),
)
BROKERS = (Column("broker", "text"), *COORDINATE, Column("height"), Column("rate_limit"))
CURRENT = (Column("topic", "text"), Column("broker", "text"))
EXACT_LIMIT = 5_000  # topics × brokers; beyond it the solver takes minutes


class Method(StrEnum):
    """How to choose."""

    centroid = "centroid"
    allpairs = "allpairs"
    hash = "hash"
    refined = "refined"
    exact = "exact"


def partition(
    topics: Annotated[Path, typer.Option(help="topic,bound_ms,rate_out; CSV or Parquet, as all tables")],
    clients: Annotated[Path, typer.Option(help="topic,client,role,c0…c7,height; role: pub, sub or both")],
    brokers: Annotated[Path, typer.Option(help="broker,c0…c7,height,rate_limit")],
    current: Annotated[Path | None, typer.Option(help="topic,broker; topics not in it are new")] = None,
    method: Annotated[Method, typer.Option(help="exact is for small instances.")] = Method.centroid,
    out: Annotated[Path | None, typer.Option(help="topic,broker; standard output if left out")] = None,
    seed: Annotated[int, typer.Option(min=0, help="No method draws by chance: any seed, same plan.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Move topics that break their latency bound or overload their broker to better ones.

    A topic's latency is its farthest publisher's distance to the broker plus that of its farthest subscriber;
    a distance is |x_a - x_b| + height_a + height_b.
    """
    topic_table = read_table(topics, TOPICS, key=["topic"])
    broker_table = read_table(brokers, BROKERS, key=["broker"])
    client_table = read_table(clients, CLIENTS)
    topic_ids = Ids("topic", topics, topic_table["topic"])
    where = partitioning.PartitionSites(_positions(broker_table), broker_table["height"], broker_table["rate_limit"])
    who = _clients(client_table, topic_ids)
    host = _current(current, topic_ids, Ids("broker", brokers, broker_table["broker"]))
    _refuse_infeasible(topic_table, broker_table)

    started = time.perf_counter()
    with progress("partitioning") as advance:
        known = partitioning.aggregate(who, where, host, topic_table["bound_ms"], topic_table["rate_out"])
        plan = _plan(method, known, who, where, topic_table["topic"].tolist(), advance)
        latency = partitioning.worst_latencies(who, where, plan.site)
    if (lost := np.flatnonzero(plan.site == NOWHERE)).size:
        topic_table.refuse(int(lost[0]), f"no broker has room for rate_out {known.rate[lost[0]]:g}")
    metrics = {
        "method": method.value,
        "violations_before": int(np.count_nonzero((known.latency > known.bound) & (host != NOWHERE))),
        "violations_after": int(np.count_nonzero(latency > known.bound)),
        "worst_latency_ms": float(latency.max()),
        "moves": plan.moves,
        "overloaded_brokers": broker_table["broker"][plan.overloaded].tolist(),
        "seconds": time.perf_counter() - started,
    }
    if out or not as_json:
        write_table(out, {"topic": topic_table["topic"], "broker": broker_table["broker"][plan.site]})
    if as_json:
        print(json.dumps(metrics))


def _plan(
    method: Method,
    topics: partitioning.PartitionTopics,
    clients: partitioning.PartitionClients,
    brokers: partitioning.PartitionSites,
    names: list[str],
    advance: Callable[[float], None],
) -> partitioning.Partition:
    match method:
        case Method.centroid:
            return partitioning.centroid(topics, brokers, advance)
        case Method.allpairs:
            return partitioning.all_pairs(topics, clients, brokers, advance)
        case Method.hash:
            return partitioning.hashed(topics, names, brokers)
        case Method.refined:
            start = partitioning.all_pairs(topics, clients, brokers, advance)
            return partitioning.refined(topics, brokers, _latencies(topics, clients, brokers), start)
        case Method.exact:
            if (size := len(topics) * len(brokers)) > EXACT_LIMIT:
                raise InputError(f"--method exact takes up to {EXACT_LIMIT} topics × brokers; these are {size}")
            return partitioning.exact(topics, brokers, _latencies(topics, clients, brokers))


def _latencies(
    topics: partitioning.PartitionTopics, clients: partitioning.PartitionClients, brokers: partitioning.PartitionSites
) -> NDArray[np.float64]:
    return pair_latencies(topics, clients, brokers)(np.arange(len(topics)))


def _positions(table: Table) -> NDArray[np.float64]:
    return np.stack([table[column.name] for column in COORDINATE], axis=1)


def _clients(table: Table, topics: Ids) -> partitioning.PartitionClients:
    topic = topics.positions(table, "topic")
    produces, consumes = table["role"] != "sub", table["role"] != "pub"
    client = pa.array(table["client"]).dictionary_encode().indices.to_numpy().astype(np.int64)
    pair = topic * (client.max() + 1) + client
    for side, verb in ((produces, "publishes to"), (consumes, "subscribes to")):
        rows = np.flatnonzero(side)
        _, first = np.unique(pair[rows], return_index=True)
        if len(first) < len(rows):
            row = int(np.delete(rows, first)[0])
            table.refuse(row, f"client {table['client'][row]!r} {verb} topic {table['topic'][row]!r} twice")
    return partitioning.PartitionClients(topic, produces, consumes, _positions(table), table["height"])


def _current(path: Path | None, topics: Ids, brokers: Ids) -> NDArray[np.int64]:
    host = np.full(len(topics.names), NOWHERE, dtype=np.int64)
    if path is not None:
        table = read_table(path, CURRENT, key=["topic"])
        host[topics.positions(table, "topic")] = brokers.positions(table, "broker")
    return host


def _refuse_infeasible(topics: Table, brokers: Table) -> None:
    rate, limit = topics["rate_out"], brokers["rate_limit"]
    if rate.max() > limit.max():
        row = int(rate.argmax())
        topics.refuse(row, f"rate_out is {rate[row]:g}; the largest rate_limit of {brokers.path} is {limit.max():g}")
    if rate.sum() > limit.sum() * (1 + 1e-9):
        row = int(np.searchsorted(np.cumsum(rate), limit.sum(), side="right"))
        topics.refuse(
            min(row, topics.rows - 1),
            f"rate_out adds up to {rate.sum():g}; all rate_limit of {brokers.path} to {limit.sum():g}",
        )
