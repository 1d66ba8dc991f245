"""A topology from a table: round trips between nodes, or the places where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.cli.tables import Column, Table, read_table
from nearcast.errors import InputError
from nearcast.lab.wan import LinkSettings, Position, Topology, from_links, from_positions

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_topology"]

EXTRAS = ("jitter_ms", "loss", "mbit")
RTTS = [
    Column("source", "text"),
    Column("destination", "text"),
    Column("rtt_ms"),
    *(Column(extra, optional=True) for extra in EXTRAS),
]
POSITIONS = [
    Column("node", "text"),
    Column("latitude", minimum=-90.0, maximum=90.0),
    Column("longitude", minimum=-180.0, maximum=180.0),
    Column("access_ms", optional=True),
]


def read_topology(path: Path, ms_per_km: float) -> Topology:
    """A file with a column `node` has positions, any other has round trips."""
    has_positions = "node" in read_table(path, [Column("node", "text", optional=True)])
    try:
        if has_positions:
            return from_positions(_positions(read_table(path, POSITIONS, key=["node"])), ms_per_km)
        return from_links(_links(read_table(path, RTTS, key=["source", "destination"])))
    except InputError as error:
        # What is wrong with the whole, such as a pair without a row, knows no file.
        raise error if str(error).startswith(str(path)) else InputError(f"{path}: {error}") from None


def _links(table: Table) -> dict[tuple[str, str], LinkSettings]:
    links = {}
    for row, (source, destination) in enumerate(zip(table["source"], table["destination"], strict=True)):
        values = {"delay_ms": float(table["rtt_ms"][row]) / 2}
        values |= {name: float(table[name][row]) for name in EXTRAS if name in table}
        try:
            # Measurements often have the trip to oneself; it never leaves the namespace.
            if source != destination:
                links[source, destination] = msgspec.convert(values, LinkSettings)
        except msgspec.ValidationError as error:
            table.refuse(row, str(error))
    return links


def _positions(table: Table) -> dict[str, Position]:
    columns = [table[name].tolist() for name in ("latitude", "longitude", "access_ms") if name in table]
    return {node: Position(*values) for node, *values in zip(table["node"], *columns, strict=True)}
