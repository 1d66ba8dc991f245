"""`nearcast plan partition`: which site hosts each topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import typer

from nearcast.cli.plan.command import JsonOption, OutOption, plan_and_write
from nearcast.cli.positions import FARTHEST, coordinate_columns, positions
from nearcast.cli.tables import Column, Ids, Table, read_table
from nearcast.errors import InputError
from nearcast.placement import partitioning as planners
from nearcast.placement.partitioning.planners import pair_latencies
from nearcast.placement.partitioning.problem import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from nearcast.placement.progress import Advance

    # The plan, which topics were late, the latency of each topic then, and late pairs of topics × sites.
    Planned = tuple[planners.Partition, NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]

__all__ = ["partition"]

Method = Literal["centroid", "allpairs", "hash", "refined", "exact"]
Objective = Literal["topics", "pairs"]
ROLE = Column("role", "text", choices=("pub", "sub", "both"))
SITE = Column("site", "text", alias="broker")
LARGEST = 1e302  # of a rate: the sum of a million of them is finite
TOPICS = (Column("topic", "text"), Column("bound_ms"), Column("rate_out", maximum=LARGEST))
CLIENTS = (Column("topic", "text"), Column("client", "text"), ROLE, Column("height", maximum=FARTHEST))
SITES = (SITE, Column("height", maximum=FARTHEST), Column("rate_limit", maximum=LARGEST))
CURRENT = (Column("topic", "text"), SITE)
EXACT_LIMIT = 5_000  # topics × sites; beyond it the solver takes minutes


def partition(
    topics: Annotated[Path, typer.Option(help="topic,bound_ms,rate_out; CSV or Parquet, as all tables")],
    clients: Annotated[Path, typer.Option(help="topic,client,role,c0,c1,…,height; role: pub, sub or both")],
    sites: Annotated[Path, typer.Option("--sites", "--brokers", help="site,c0,c1,…,height,rate_limit")],
    current: Annotated[Path | None, typer.Option(help="topic,site; topics not in it are new")] = None,
    method: Annotated[Method, typer.Option(help="exact is for small instances.")] = "centroid",
    objective: Annotated[
        Objective,
        typer.Option(help="refined, exact: keep few topics, or few publisher-subscriber pairs, above the bound"),
    ] = "topics",
    moves_at_most: Annotated[int | None, typer.Option(min=0, help="refined: no plan with more moves")] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move topics that exceed their latency bound or overload their site.

    A topic's latency is its farthest publisher's distance to the site plus that of its farthest subscriber;
    a distance is |x_a - x_b| + height_a + height_b, in as many dimensions as --sites has columns c0, c1, …. The plan
    has the columns topic,site. Older tables may call the site's column broker.

    Example: nearcast plan partition --topics topics.csv --clients clients.csv --brokers brokers.csv --out plan.csv
    """
    topic_table = read_table(topics, TOPICS, key=["topic"])
    axes = coordinate_columns(sites)
    site_table = read_table(sites, (*SITES, *axes), key=["site"])
    topic_ids = Ids("topic", topics, topic_table["topic"])
    candidates = planners.PartitionSites(positions(site_table, axes), site_table["height"], site_table["rate_limit"])
    client_table = read_table(clients, (*CLIENTS, *axes))
    members = _clients(client_table, positions(client_table, axes), topic_ids)
    host = _current(current, topic_ids, Ids("site", sites, site_table["site"]))
    _refuse_infeasible(topic_table, site_table)
    size = topic_table.rows * site_table.rows
    if method == "exact" and size > EXACT_LIMIT:
        raise InputError(f"--method exact takes up to {EXACT_LIMIT} topics × sites; these are {size}")

    def plan(advance: Advance) -> Planned:
        known = planners.aggregate(members, candidates, host, topic_table["bound_ms"], topic_table["rate_out"])

        def latencies() -> NDArray[np.float64]:
            return pair_latencies(known, members, candidates)(np.arange(len(known)))

        def all_pairs() -> planners.Partition:
            return planners.all_pairs(known, members, candidates, advance)

        methods: dict[str, Callable[[], planners.Partition]] = {
            "centroid": lambda: planners.centroid(known, candidates, advance),
            "allpairs": all_pairs,
            "hash": lambda: planners.hashed(known, topic_table["topic"].tolist(), candidates),
            "refined": lambda: planners.refined(known, candidates, latencies(), all_pairs(), kept_low, moves_at_most),
            "exact": lambda: planners.exact(known, candidates, latencies(), kept_low),
        }
        late = planners.late_pairs(members, candidates, known.bound)
        kept_low = late if objective == "pairs" else None
        found = methods[method]()
        late_before = (known.latency > known.bound) & (host != NOWHERE)
        return found, late_before, planners.worst_latencies(members, candidates, found.site), late

    def describe(planned: Planned) -> tuple[dict[str, Any], dict[str, Any]]:
        plan, late_before, latency, late = planned
        pairs = int(planners.pair_counts(members, topic_table.rows).sum())
        placed = np.flatnonzero(host != NOWHERE)
        late_pairs = int(late[np.arange(topic_table.rows), plan.site].sum())
        rate = topic_table["rate_out"]
        topic_table.refuse_first(plan.site == NOWHERE, lambda row: f"no site has room for rate_out {rate[row]:g}")
        return {"topic": topic_table["topic"], "site": site_table["site"][plan.site]}, {
            "violations_before": int(np.count_nonzero(late_before)),
            "violations_after": int(np.count_nonzero(latency > topic_table["bound_ms"])),
            "pairs": pairs,
            "late_pairs_before": int(late[placed, host[placed]].sum()),
            "late_pairs_after": late_pairs,
            "pair_violation_ratio": late_pairs / max(pairs, 1),
            "worst_latency_ms": float(latency.max()),
            "moves": plan.moves,
            "overloaded_sites": site_table["site"][plan.overloaded].tolist(),
        }

    plan_and_write("partitioning", plan, describe, method=method, out=out, as_json=as_json)


def _clients(table: Table, position: NDArray[np.float64], topics: Ids) -> planners.PartitionClients:
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
    return planners.PartitionClients(topic, produces, consumes, position, table["height"])


def _current(path: Path | None, topics: Ids, sites: Ids) -> NDArray[np.int64]:
    host = np.full(len(topics.names), NOWHERE, dtype=np.int64)
    if path is not None:
        table = read_table(path, CURRENT, key=["topic"])
        host[topics.positions(table, "topic")] = sites.positions(table, "site")
    return host


def _refuse_infeasible(topics: Table, sites: Table) -> None:
    rate, limit = topics["rate_out"], sites["rate_limit"]
    if rate.max() > limit.max():
        row = int(rate.argmax())
        topics.refuse(row, f"rate_out is {rate[row]:g}; the largest rate_limit of {sites.path} is {limit.max():g}")
    if rate.sum() > limit.sum() * (1 + 1e-9):
        row = int(np.searchsorted(np.cumsum(rate), limit.sum(), side="right"))
        topics.refuse(
            min(row, topics.rows - 1),
            f"rate_out adds up to {rate.sum():g}; all rate_limit of {sites.path} to {limit.sum():g}",
        )
