"""The nodes of a wide area, and the settings of the link from each to each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MS_PER_KM", "LinkSettings", "Position", "Topology", "from_links", "from_positions", "from_rtts"]

# Light in fibre takes 0.005 ms/km; roads, detours and routers double it: the median over the pairs of
# cities more than 500 km apart in WonderProxy's pings of 2020 is 0.010 ms/km, one way.
MS_PER_KM = 0.01

# A node's name becomes part of a namespace's name, which is a file's name.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
# "all" is what the command line calls every other node.
EVERY_OTHER = "all"
# Addresses are 10.77.x.y, of which the first and the last are not for nodes.
MOST_NODES = 1000


class LinkSettings(msgspec.Struct, frozen=True, omit_defaults=True):
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
    """Nodes, and a matrix of links by source and destination (the diagonal is not used)."""

    nodes: tuple[str, ...]
    links: tuple[tuple[LinkSettings, ...], ...]

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

    def link(self, source: str, destination: str) -> LinkSettings:
        """The link from one node to another."""
        return self.links[self.index(source)][self.index(destination)]


def from_links(links: Mapping[tuple[str, str], LinkSettings]) -> Topology:
    """A topology from links by (source, destination). A pair given in one direction is the same in both."""
    nodes = tuple(dict.fromkeys(node for pair in links for node in pair))

    def link(source: str, destination: str) -> LinkSettings:
        if source == destination:
            return LinkSettings(0.0)
        found = links.get((source, destination)) or links.get((destination, source))
        if found is None:
            raise InputError(f"there is no row for the pair {source!r}, {destination!r}")
        return found

    return Topology(nodes, tuple(tuple(link(a, b) for b in nodes) for a in nodes))


def from_rtts(rtts_ms: Mapping[tuple[str, str], float]) -> Topology:
    """A topology from round-trip times by (source, destination): a direction takes half of its own time.

    >>> from_rtts({("paris", "london"): 8.0}).link("london", "paris").delay_ms
    4.0
    """
    return from_links({pair: LinkSettings(rtt / 2) for pair, rtt in rtts_ms.items()})


def from_positions(positions: Mapping[str, Position], ms_per_km: float = MS_PER_KM) -> Topology:
    """A topology from places: access link + distance over the globe × delay per km + access link.

    >>> area = from_positions({"paris": Position(48.86, 2.35), "van": Position(48.86, 2.35, access_ms=15.0)})
    >>> area.link("van", "paris").delay_ms
    15.0
    """

    # Imported here: the emulator's process does without NumPy.
    import numpy as np

    from nearcast.coordinates.geography import great_circle_km

    lat, lon, access = np.array([(p.latitude, p.longitude, p.access_ms) for p in positions.values()]).T
    delay_ms = access[:, None] + ms_per_km * great_circle_km(lat[:, None], lon[:, None], lat, lon) + access
    np.fill_diagonal(delay_ms, 0.0)
    return Topology(tuple(positions), tuple(tuple(map(LinkSettings, row)) for row in delay_ms.tolist()))
