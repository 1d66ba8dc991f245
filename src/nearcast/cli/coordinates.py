"""`nearcast coordinates …`: network coordinates from measured round trips."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from nearcast.cli.progress_bar import progress
from nearcast.cli.tables import Column, Ids, Table, read_table, write_table
from nearcast.coordinates.optimisation import optimise
from nearcast.coordinates.simulation import fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["app"]

app = typer.Typer()


Method = Literal["optimised", "vivaldi"]
LINKS = (Column("source", "text"), Column("destination", "text"), Column("rtt_ms", maximum=1e15))
SHORTEST_MS = 1e-9  # shorter ones would overflow where errors are relative to them


@app.command("fit")
def fit_command(
    rtt: Annotated[Path, typer.Option(help="source,destination,rtt_ms; CSV or Parquet")],
    out: Annotated[Path | None, typer.Option(help="node,c0…c7,height; standard output if left out")] = None,
    method: Annotated[
        Method, typer.Option(help="optimised: all round trips at once; vivaldi: as live nodes do.")
    ] = "optimised",
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same coordinates.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as one JSON object.")] = False,
) -> None:
    """Give every node a coordinate so that distances between them tell the round trips.

    |x_a - x_b| + height_a + height_b estimates the round trip of a and b. Pairs may be missing and may be
    measured one way or both ways; rows of a node with itself are skipped.

    Example: nearcast coordinates fit --rtt rtt.csv --out coordinates.csv
    """
    table = read_table(rtt, LINKS, key=["source", "destination"])
    names, source, destination, rtt_ms = _links(table)
    started = time.perf_counter()
    with progress("fitting coordinates") as advance:
        result = fit(len(names), source, destination, rtt_ms, seed=seed, advance=advance)
    if method == "optimised":
        with progress("optimising them") as advance:
            result = optimise(result, source, destination, rtt_ms, advance=advance)
    metrics = {
        "median_relative_error": result.median_relative_error,
        "p90_relative_error": result.p90_relative_error,
        "rounds": result.rounds,
        "nodes": len(names),
        "seconds": time.perf_counter() - started,
    }
    if out or not as_json:
        position = {f"c{i}": column.tolist() for i, column in enumerate(result.position.T)}
        write_table(out, {"node": names, **position, "height": result.height.tolist()})
    if as_json:
        print(json.dumps(metrics))


def _links(table: Table) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Node names in order of appearance, and the links between different nodes by position."""
    both = pa.chunked_array([table.columns["source"], table.columns["destination"]])
    nodes = Ids("node", table.path, np.asarray(pc.unique(both)))
    source, destination = nodes.positions(table, "source"), nodes.positions(table, "destination")
    names, rtt_ms, between = nodes.names, table["rtt_ms"], source != destination
    table.refuse_first(
        between & (rtt_ms < SHORTEST_MS),
        lambda row: f"rtt_ms is {rtt_ms[row]:g}; at least {SHORTEST_MS:g} is needed between different nodes",
    )
    if not between.any():
        table.refuse(0, "a node with itself, as all rows; round trips between different nodes are needed")
    graph = coo_array((np.ones(table.rows), (source, destination)), (len(names),) * 2)
    part = connected_components(graph, directed=False)[1]
    table.refuse_first(
        part[source] != part[0],
        lambda row: f"no chain of measurements joins {table['source'][row]!r} and {names[0]!r}",
    )
    return names.tolist(), source[between], destination[between], rtt_ms[between]
