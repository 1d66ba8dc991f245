"""A topology from a table: round trips between nodes, or the places where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.cli.tables import Column, Table, read_table
from nearcast.errors import InputError
from nearcast.lab.wan import Position, Topology, Way, from_positions, from_ways

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
    Column("latitude", minimum=-90.0),
    Column("longitude", minimum=-180.0),
    Column("access_ms", optional=True),
]


def read_topology(path: Path, ms_per_km: float) -> Topology:
    """A file with a column `node` has positions, any other has round trips."""
    has_positions = "node" in read_table(path, [Column("node", "text", optional=True)])
    try:
        if has_positions:
            return from_positions(_positions(read_table(path, POSITIONS, key=["node"])), ms_per_km)
        return from_ways(_ways(read_table(path, RTTS, key=["source", "destination"])))
    except InputError as error:
        # What is wrong with the whole, such as a pair without a row, knows no file.
        raise error if str(error).startswith(str(path)) else InputError(f"{path}: {error}") from None


def _ways(table: Table) -> dict[tuple[str, str], Way]:
    ways = {}
    for row, (source, destination) in enumerate(zip(table["source"], table["destination"], strict=True)):
        values = {"delay_ms": float(table["rtt_ms"][row]) / 2}
        values |= {name: float(table[name][row]) for name in EXTRAS if name in table}
        try:
            # Measurements often have the trip to oneself; it never leaves the namespace.
            if source != destination:
                ways[source, destination] = msgspec.convert(values, Way)
        except msgspec.ValidationError as error:
            table.refuse(row, str(error))
    return ways


def _positions(table: Table) -> dict[str, Position]:
    positions = {}
    for row, node in enumerate(table["node"]):
        latitude, longitude = float(table["latitude"][row]), float(table["longitude"][row])
        if latitude > 90.0 or longitude > 180.0:
            table.refuse(row, f"{latitude:g}, {longitude:g} is no place: latitude ends at 90, longitude at 180")
        access = float(table["access_ms"][row]) if "access_ms" in table else 0.0
        positions[node] = Position(latitude, longitude, access)
    return positions
