"""The columns of the registered clients, and of coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.model.model import ClientColumns
from nearcast.coordinator.monitor import DIMENSIONS
from nearcast.domain.topic import overlaps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearcast.coordinates import Coordinate
    from nearcast.coordinator.model.model import Flags, Floats
    from nearcast.protocol.registration import ClientRecord

__all__ = ["client_columns", "coordinate_columns"]


def client_columns(
    clients: Mapping[str, ClientRecord], topics: tuple[str, ...], sites: tuple[str, ...]
) -> ClientColumns:
    """The columns of the registered clients."""
    row_of = {name: row for row, name in enumerate(sites)}
    number = {name: row for row, name in enumerate(topics)}
    patterns = [name for name in topics if "*" in name or ">" in name]
    cache: dict[str, list[int]] = {}

    def rows(pattern: str) -> list[int]:
        """The registered topics that overlap a name or pattern."""
        found = cache.get(pattern)
        if found is None:
            if pattern in number:
                found = [number[pattern]]
            else:
                among = topics if "*" in pattern or ">" in pattern else patterns
                found = [number[name] for name in among if overlaps(name, pattern)]
            cache[pattern] = found
        return found

    records = list(clients.values())
    pairs: dict[tuple[int, int], int] = {}  # of client and topic; bit 0: publishes, bit 1: subscribes
    for row, record in enumerate(records):
        for role, names in ((1, record.publishes), (2, record.subscribes)):
            for name in names:
                for topic in rows(name):
                    pairs[row, topic] = pairs.get((row, topic), 0) | role
    held = [(row, name) for row, record in enumerate(records) for name in record.channels]
    shared = {name: row for row, name in enumerate(sorted({name for _, name in held}))}
    keys = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    roles = np.fromiter(pairs.values(), np.int64, len(pairs))
    known, position, height = coordinate_columns([record.coordinate for record in records])
    near = [[(row_of[site], ms) for site, ms in record.round_trips.items() if site in row_of] for record in records]
    width = max((len(measured) for measured in near), default=0)
    near = [[*measured, *[(-1, np.inf)] * (width - len(measured))] for measured in near]
    near_columns = np.array(near, dtype=float).reshape(len(records), width, 2)
    near_site = near_columns[:, :, 0].astype(np.int64)
    return ClientColumns(
        tuple(record.name for record in records),
        home=np.fromiter((row_of.get(record.home, -1) for record in records), np.int64, len(records)),
        known=known,
        placed=known | (near_site >= 0).any(axis=1),
        position=position,
        height=height,
        near_site=near_site,
        near_ms=near_columns[:, :, 1],
        held=np.zeros(len(records), dtype=bool),
        pair_client=keys[:, 0],
        pair_topic=keys[:, 1],
        publishes=(roles & 1) > 0,
        subscribes=(roles & 2) > 0,
        channels=tuple(shared),
        held_client=np.fromiter((row for row, _ in held), np.int64, len(held)),
        held_channel=np.fromiter((shared[name] for _, name in held), np.int64, len(held)),
    )


def coordinate_columns(coordinates: Sequence[Coordinate | None]) -> tuple[Flags, Floats, Floats]:
    """Which coordinates are known, their positions and heights; those that are not are at the origin."""
    origin = (0.0,) * DIMENSIONS
    return (
        np.array([coordinate is not None for coordinate in coordinates], dtype=bool),
        np.array([coordinate.position if coordinate else origin for coordinate in coordinates]).reshape(-1, DIMENSIONS),
        np.array([coordinate.height if coordinate else 0.0 for coordinate in coordinates]),
    )
