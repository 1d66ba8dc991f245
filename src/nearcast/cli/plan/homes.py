"""`nearcast plan homes`: which site each client calls home."""

from __future__ import annotations

import enum
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from nearcast.cli.progress import progress
from nearcast.cli.tables import Column, Ids, Table, read_table, write_table
from nearcast.errors import InputError
from nearcast.placement import homes as planners
from nearcast.placement.homes.distance import globe_km, plane_km

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["homes"]

PLANE = (Column("x_km", minimum=None, optional=True), Column("y_km", minimum=None, optional=True))
GLOBE = (Column("lat", minimum=-90, optional=True), Column("lon", minimum=-180, optional=True))
ROLES = ("pub", "sub", "both")


class Method(enum.StrEnum):
    """The planners by name."""

    random = "random"
    nearest = "nearest"
    one_topic_one_site = "one_topic_one_site"
    reloc = "reloc"
    refined = "refined"
    exact = "exact"


class Engine(enum.StrEnum):
    """Where the heavy part is done."""

    memory = "memory"
    spark = "spark"


def homes(
    sites: Annotated[Path, typer.Option(help="site,x_km,y_km,storage,compute (or lat,lon)")],
    clients: Annotated[Path, typer.Option(help="client,x_km,y_km (or lat,lon)")],
    topics: Annotated[Path, typer.Option(help="topic,spool_size")],
    members: Annotated[Path, typer.Option(help="topic,client,role; role is pub, sub or both")],
    out: Annotated[Path | None, typer.Option(help="where client,site goes; standard output if none")] = None,
    method: Annotated[Method, typer.Option(help="the planner")] = Method.refined,
    cloud_delay_ms: Annotated[float, typer.Option(help="one way between any site and the cloud")] = 5.0,
    ms_per_km: Annotated[float, typer.Option(help="one way delay per kilometre")] = 0.1,
    clusters: Annotated[str, typer.Option(help="K of reloc: a number, or auto to choose it")] = "auto",
    seed: Annotated[int, typer.Option(help="decides all that is random", min=0)] = 0,
    engine: Annotated[Engine, typer.Option(help="spark: relations by Spark, for --method reloc")] = Engine.memory,
    as_json: Annotated[bool, typer.Option("--json", help="print the metrics as one JSON object")] = False,
) -> None:
    """Assign every client a home site so that notifications arrive soonest and sites are not overfull."""
    for option, value in (("--cloud-delay-ms", cloud_delay_ms), ("--ms-per-km", ms_per_km)):
        if not np.isfinite(value) or value < 0:
            raise InputError(f"{option} is {value}; a finite number of at least 0 is needed")
    site_table = _read_places(sites, Column("site", "text"), Column("storage"), Column("compute"))
    client_table = _read_places(clients, Column("client", "text"))
    problem = _instance(site_table, client_table, topics, members, cloud_delay_ms, ms_per_km)
    parameters = planners.RelocParameters(_cluster_count(clusters, site_table), seed=seed)
    start = time.perf_counter()
    if engine is Engine.spark:
        plan = _plan_by_spark(method, problem, parameters)
    else:
        with progress("placing clients") as advance:
            plan = _plan(method, problem, parameters, advance)
    seconds = time.perf_counter() - start
    placed = {"client": client_table["client"], "site": site_table["site"][plan.home]}
    if out is not None or not as_json:
        write_table(out, placed)
    if as_json:
        print(json.dumps(_metrics(method, plan, site_table["site"], seconds)))


def _plan(
    method: Method,
    problem: planners.HomesProblem,
    parameters: planners.RelocParameters,
    advance: Callable[[float], None],
) -> planners.HomesPlan:
    match method:
        case Method.random:
            return planners.random(problem, parameters.seed)
        case Method.nearest:
            return planners.nearest(problem)
        case Method.one_topic_one_site:
            return planners.one_topic_one_site(problem)
        case Method.reloc:
            return planners.reloc(problem, parameters, advance)
        case Method.refined:
            return planners.refined(problem, planners.RefineParameters(seed=parameters.seed), advance)
        case Method.exact:
            return planners.exact(problem, seed=parameters.seed)


def _plan_by_spark(
    method: Method, problem: planners.HomesProblem, parameters: planners.RelocParameters
) -> planners.HomesPlan:
    if method is not Method.reloc:
        raise InputError(f"--engine spark is for --method reloc; --method is {method.value}")
    from nearcast.cluster.analytics.parallel_planners import reloc
    from nearcast.cluster.session import spark_session

    return reloc(spark_session("nearcast plan homes"), problem, parameters)


def _read_places(path: Path, key: Column, *columns: Column) -> Table:
    """A table of places, in the plane or on the globe."""
    table = read_table(path, [key, *columns, *PLANE, *GLOBE], key=[key.name])
    if not any(all(column.name in table for column in pair) for pair in (PLANE, GLOBE)):
        raise InputError(f"{path}, row 0 (header): columns x_km and y_km, or lat and lon, are needed")
    for column, most in (("lat", 90), ("lon", 180)):
        if column in table and (table[column] > most).any():
            row = int(np.flatnonzero(table[column] > most)[0])
            table.refuse(row, f"{column} is {table[column][row]:g}; at most {most} is possible")
    return table


def _delays(from_table: Table, to_table: Table, ms_per_km: float) -> NDArray[np.float64]:
    for names, distance in ((("x_km", "y_km"), plane_km), (("lat", "lon"), globe_km)):
        if all(name in table for name in names for table in (from_table, to_table)):
            there, here = (np.stack([table[name] for name in names], axis=1) for table in (to_table, from_table))
            return ms_per_km * distance(here, there)
    raise InputError(
        f"{from_table.path}, row 0 (header): positions are of another kind than those of {to_table.path}; "
        "use x_km,y_km in both or lat,lon in both"
    )


def _instance(
    sites: Table, clients: Table, topics: Path, members: Path, cloud_ms: float, ms_per_km: float
) -> planners.HomesProblem:
    client_ms, site_ms = _delays(clients, sites, ms_per_km), _delays(sites, sites, ms_per_km)
    np.fill_diagonal(site_ms, 0.0)  # the globe's formula may leave a rounding there
    topic_table = read_table(topics, [Column("topic", "text"), Column("spool_size")], key=["topic"])
    columns = [Column("topic", "text"), Column("client", "text"), Column("role", "text", choices=ROLES)]
    member_table = read_table(members, columns, key=["topic", "client"])
    topic = Ids("topic", topics, topic_table["topic"]).positions(member_table, "topic")
    client = Ids("client", clients.path, clients["client"]).positions(member_table, "client")
    role = member_table["role"]
    shape = (topic_table.rows, clients.rows)
    publishes, subscribes = role != "sub", role != "pub"
    return planners.HomesProblem(
        client_site_ms=client_ms,
        site_site_ms=site_ms,
        cloud_ms=cloud_ms,
        storage=sites["storage"],
        compute=sites["compute"],
        spool_size=topic_table["spool_size"],
        publications=planners.membership(topic[publishes], client[publishes], shape),
        subscriptions=planners.membership(topic[subscribes], client[subscribes], shape),
    )


def _cluster_count(text: str, sites: Table) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= sites.rows:
        raise InputError(f"--clusters is {text!r}; allowed: auto, or 1 to {sites.rows} (the sites of {sites.path})")
    return int(text)


def _metrics(method: Method, plan: planners.HomesPlan, sites: NDArray[Any], seconds: float) -> dict[str, object]:
    return {
        "method": method.value,
        "delay_ms": plan.delay_ms,
        "distance_delay_ms": plan.distance_delay_ms,
        "resource_delay_ms": plan.resource_delay_ms,
        "storage_used": dict(zip(sites, plan.storage_used.tolist(), strict=True)),
        "compute_used": dict(zip(sites, plan.compute_used.tolist(), strict=True)),
        "delegated_share": plan.delegated_share,
        "seconds": seconds,
    }
