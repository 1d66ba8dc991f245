"""Which nodes a wide area has, and what the way from each to each other is like."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec

from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MS_PER_KM", "Position", "Topology", "Way", "from_positions", "from_rtts", "from_ways"]

# Light in fibre takes 0.005 ms/km; roads, detours and routers double it: the median over the pairs of
# cities more than 500 km apart in WonderProxy's pings of 2020 is 0.010 ms/km, one way.
MS_PER_KM = 0.01
EARTH_RADIUS_KM = 6371.0

# A node's name becomes part of a namespace's name, which is a file's name.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# "all" is what the command line calls every other node.
EVERY_OTHER = "all"
# Addresses are 10.77.x.y, of which the first and the last are not for nodes.
MOST_NODES = 1000


class Way(msgspec.Struct, frozen=True, omit_defaults=True):
    """One direction between two nodes. The delay varies by at most `jitter_ms` around `delay_ms`."""

    delay_ms: float
    jitter_ms: float = 0.0
    loss: float = 0.0
    mbit: float | None = None
    cut: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.delay_ms <= 60_000.0:
            raise InputError(f"delay is {self.delay_ms:g} ms; 0 to 60000 is allowed")
        if not 0.0 <= self.jitter_ms <= self.delay_ms:
            raise InputError(f"jitter is {self.jitter_ms:g} ms; 0 to the delay ({self.delay_ms:g} ms) is allowed")
        if not 0.0 <= self.loss <= 1.0:
            raise InputError(f"loss is {self.loss:g}; 0 to 1 is allowed")
        if self.mbit is not None and not 0.001 <= self.mbit <= 1e6:
            raise InputError(f"bandwidth is {self.mbit:g} Mbit/s; 0.001 to 1000000 is allowed")


class Position(msgspec.Struct, frozen=True):
    """Where a node is, in degrees, and the one-way delay of its access link."""

    latitude: float
    longitude: float
    access_ms: float = 0.0


class Topology(msgspec.Struct, frozen=True):
    """Nodes, and a matrix of ways by source and destination (the diagonal is not used)."""

    nodes: tuple[str, ...]
    ways: tuple[tuple[Way, ...], ...]

    def __post_init__(self) -> None:
        if not 2 <= len(self.nodes) <= MOST_NODES:
            raise InputError(f"a topology has 2 to {MOST_NODES} nodes; this one has {len(self.nodes)}")
        for node in self.nodes:
            if not NAME.fullmatch(node) or node == EVERY_OTHER:
                raise InputError(
                    f"node {node!r} cannot be a name: letters, digits, '_', '.' and '-' are allowed, "
                    f"at most 64 of them, and not {EVERY_OTHER!r}"
                )
        if len(set(self.nodes)) < len(self.nodes):
            raise InputError("a node is named twice")

    def index(self, node: str) -> int:
        """The number of a node."""
        try:
            return self.nodes.index(node)
        except ValueError:
            some = ", ".join(self.nodes[:10]) + (", …" if len(self.nodes) > 10 else "")
            raise InputError(f"there is no node {node!r}; there are: {some}") from None

    def way(self, source: str, destination: str) -> Way:
        """The way from one node to another."""
        return self.ways[self.index(source)][self.index(destination)]


def from_ways(ways: Mapping[tuple[str, str], Way]) -> Topology:
    """A topology from ways by (source, destination). A pair given in one direction is the same in both."""
    nodes = tuple(dict.fromkeys(node for pair in ways for node in pair))

    def way(source: str, destination: str) -> Way:
        if source == destination:
            return Way(0.0)
        found = ways.get((source, destination)) or ways.get((destination, source))
        if found is None:
            raise InputError(f"there is no row for the pair {source!r}, {destination!r}")
        return found

    return Topology(nodes, tuple(tuple(way(a, b) for b in nodes) for a in nodes))


def from_rtts(rtts_ms: Mapping[tuple[str, str], float]) -> Topology:
    """A topology from round-trip times by (source, destination): a direction takes half of its own time.

    >>> from_rtts({("paris", "london"): 8.0}).way("london", "paris").delay_ms
    4.0
    """
    return from_ways({pair: Way(rtt / 2) for pair, rtt in rtts_ms.items()})


def from_positions(positions: Mapping[str, Position], ms_per_km: float = MS_PER_KM) -> Topology:
    """A topology from places: access link + distance over the globe × delay per km + access link.

    >>> area = from_positions({"paris": Position(48.86, 2.35), "van": Position(48.86, 2.35, access_ms=15.0)})
    >>> area.way("van", "paris").delay_ms
    15.0
    """

    def way(a: str, b: str) -> Way:
        if a == b:
            return Way(0.0)
        distance = distance_km(positions[a], positions[b])
        return Way(positions[a].access_ms + ms_per_km * distance + positions[b].access_ms)

    return Topology(tuple(positions), tuple(tuple(way(a, b) for b in positions) for a in positions))


def distance_km(a: Position, b: Position) -> float:
    """The great-circle distance (haversine)."""
    north_a, north_b = math.radians(a.latitude), math.radians(b.latitude)
    east = math.radians(b.longitude - a.longitude)
    chord = math.sin((north_b - north_a) / 2) ** 2 + math.cos(north_a) * math.cos(north_b) * math.sin(east / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, chord)))
