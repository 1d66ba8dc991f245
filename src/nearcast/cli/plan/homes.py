"""`nearcast plan homes`: which site each client calls home."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from scipy.spatial.distance import cdist

from nearcast.cli.plan.command import Engine, JsonOption, OutOption, SeedOption, plan_and_write
from nearcast.cli.tables import Column, Ids, Table, read_table
from nearcast.coordinates.geography import great_circle_km
from nearcast.errors import InputError
from nearcast.placement import homes as planners

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.placement.progress import Advance

__all__ = ["homes"]

Method = Literal["random", "nearest", "one_topic_one_site", "reloc", "refined", "exact"]
LARGEST = 1e15  # of what is added up: sums stay exact enough, and never overflow
PLANE = (
    Column("x_km", minimum=-LARGEST, maximum=LARGEST, optional=True),
    Column("y_km", minimum=-LARGEST, maximum=LARGEST, optional=True),
)
GLOBE = (Column("lat", minimum=-90, maximum=90, optional=True), Column("lon", minimum=-180, maximum=180, optional=True))
MEMBERS = (Column("topic", "text"), Column("client", "text"), Column("role", "text", choices=("pub", "sub", "both")))


def homes(
    sites: Annotated[Path, typer.Option(help="site,x_km,y_km,storage,compute (or lat,lon); CSV or Parquet")],
    clients: Annotated[Path, typer.Option(help="client,x_km,y_km (or lat,lon)")],
    topics: Annotated[Path, typer.Option(help="topic,spool_size")],
    members: Annotated[Path, typer.Option(help="topic,client,role; role is pub, sub or both")],
    out: OutOption = None,
    method: Annotated[Method, typer.Option(help="The planner.")] = "refined",
    cloud_delay_ms: Annotated[float, typer.Option(help="One way between any site and the cloud.")] = 5.0,
    ms_per_km: Annotated[float, typer.Option(help="One-way delay per kilometre.")] = 0.1,
    current: Annotated[
        Path | None, typer.Option(help="client,site: today's homes; refined begins from them and is not worse.")
    ] = None,
    moves_at_most: Annotated[
        int | None, typer.Option(min=0, help="With --current: how many clients may change their home.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Limit for the search of refined.")] = 60.0,
    clusters: Annotated[str, typer.Option(help="K of reloc: a number, or auto to choose it.")] = "auto",
    seed: SeedOption = 0,
    engine: Annotated[Engine, typer.Option(help="spark: relations by Spark, for --method reloc.")] = "memory",
    as_json: JsonOption = False,
) -> None:
    """Assign every client a home site: low notification delay, no site above its storage and compute.

    The plan has the columns client,site.

    Example: nearcast plan homes --sites s.csv --clients c.csv --topics t.csv --members m.csv --out homes.csv
    """
    for option, value in (("--cloud-delay-ms", cloud_delay_ms), ("--ms-per-km", ms_per_km)):
        if not 0 <= value <= LARGEST:
            raise InputError(f"{option} is {value:g}; a number from 0 to {LARGEST:g} is needed")
    if engine == "spark" and method != "reloc":
        raise InputError(f"--engine spark is for --method reloc; --method is {method}")
    if method != "refined" and (current is not None or moves_at_most is not None):
        raise InputError(f"--current and --moves-at-most are for --method refined; --method is {method}")
    if moves_at_most is not None and current is None:
        raise InputError("--moves-at-most needs --current: the homes that the clients have")
    site_table = _read_positions(
        sites, Column("site", "text"), Column("storage", maximum=LARGEST), Column("compute", maximum=LARGEST)
    )
    client_table = _read_positions(clients, Column("client", "text"))
    problem = _problem(site_table, client_table, topics, members, cloud_delay_ms, ms_per_km)
    parameters = planners.RelocParameters(_cluster_count(clusters, site_table), seed=seed)
    refine = planners.RefineParameters(seconds=seconds, seed=seed)
    homes_now = None if current is None else _current(current, client_table, site_table)

    def plan(advance: Advance) -> planners.HomesPlan:
        if engine == "spark":
            from nearcast.cluster.analytics import parallel_planners
            from nearcast.cluster.spark_session import spark_session

            return parallel_planners.reloc(spark_session("nearcast plan homes"), problem, parameters)
        if homes_now is not None and moves_at_most is not None:
            return planners.refined_with_few_moves(problem, homes_now, moves_at_most, refine)
        methods = {
            "random": lambda: planners.random(problem, seed),
            "nearest": lambda: planners.nearest(problem),
            "one_topic_one_site": lambda: planners.one_topic_one_site(problem),
            "reloc": lambda: planners.reloc(problem, parameters, advance),
            "refined": lambda: planners.refined(problem, refine, advance, homes_now),
            "exact": lambda: planners.exact(problem, seed=seed),
        }
        return methods[method]()

    def describe(plan: planners.HomesPlan) -> tuple[dict[str, Any], dict[str, Any]]:
        names = site_table["site"]
        return {"client": client_table["client"], "site": names[plan.home]}, {
            "delay_ms": plan.delay_ms,
            "distance_delay_ms": plan.distance_delay_ms,
            "resource_delay_ms": plan.resource_delay_ms,
            "storage_used": dict(zip(names, plan.storage_used.tolist(), strict=True)),
            "compute_used": dict(zip(names, plan.compute_used.tolist(), strict=True)),
            "delegated_share": plan.delegated_share,
            **({} if homes_now is None else {"moves": int((plan.home != homes_now).sum())}),
        }

    plan_and_write("placing clients", plan, describe, method=method, out=out, as_json=as_json)


def _read_positions(path: Path, key: Column, *columns: Column) -> Table:
    """A table of positions, in the plane or on the globe."""
    table = read_table(path, [key, *columns, *PLANE, *GLOBE], key=[key.name])
    if not any(all(column.name in table for column in pair) for pair in (PLANE, GLOBE)):
        raise InputError(f"{path}, row 0 (header): columns x_km and y_km, or lat and lon, are needed")
    return table


def _delays(from_table: Table, to_table: Table, ms_per_km: float) -> NDArray[np.float64]:
    if all("x_km" in table and "y_km" in table for table in (from_table, to_table)):
        here, there = (np.stack([table["x_km"], table["y_km"]], axis=1) for table in (from_table, to_table))
        return np.asarray(ms_per_km * cdist(here, there))
    if all("lat" in table and "lon" in table for table in (from_table, to_table)):
        here, there = from_table["lat"][:, None], from_table["lon"][:, None]
        return ms_per_km * great_circle_km(here, there, to_table["lat"], to_table["lon"])
    raise InputError(
        f"{from_table.path}, row 0 (header): positions are of another kind than those of {to_table.path}; "
        "use x_km,y_km in both or lat,lon in both"
    )


def _problem(
    sites: Table, clients: Table, topics: Path, members: Path, cloud_ms: float, ms_per_km: float
) -> planners.HomesProblem:
    client_ms, site_ms = _delays(clients, sites, ms_per_km), _delays(sites, sites, ms_per_km)
    np.fill_diagonal(site_ms, 0.0)  # the globe's formula may leave a rounding error there
    topic_table = read_table(topics, [Column("topic", "text"), Column("spool_size", maximum=LARGEST)], key=["topic"])
    member_table = read_table(members, MEMBERS, key=["topic", "client"])
    topic = Ids("topic", topics, topic_table["topic"]).positions(member_table, "topic")
    client = Ids("client", clients.path, clients["client"]).positions(member_table, "client")
    publishes, subscribes = member_table["role"] != "sub", member_table["role"] != "pub"
    shape = (topic_table.rows, clients.rows)
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


def _current(path: Path, clients: Table, sites: Table) -> NDArray[np.int64]:
    """Today's home of every client."""
    table = read_table(path, [Column("client", "text"), Column("site", "text")], key=["client"])
    home = np.full(clients.rows, -1)
    rows = Ids("client", clients.path, clients["client"]).positions(table, "client")
    home[rows] = Ids("site", sites.path, sites["site"]).positions(table, "site")
    if (none := np.flatnonzero(home < 0)).size:
        raise InputError(f"{path}, row 0: client {clients['client'][none[0]]!r} of {clients.path} is missing")
    return home


def _cluster_count(text: str, sites: Table) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= sites.rows:
        raise InputError(f"--clusters is {text!r}; allowed: auto, or 1 to {sites.rows} (the sites of {sites.path})")
    return int(text)
