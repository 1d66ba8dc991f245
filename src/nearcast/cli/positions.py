"""Positions in tables: network coordinates of any number of dimensions, kilometres on a plane, or degrees."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from nearcast.cli.tables import Column, column_names
from nearcast.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from nearcast.cli.tables import Table

__all__ = ["FARTHEST", "coordinate_columns", "position_columns", "positions"]

FARTHEST = 1e15  # of any coordinate: squares of differences stay finite
PLANE = tuple(Column(name, minimum=-FARTHEST, maximum=FARTHEST) for name in ("x_km", "y_km"))
GLOBE = (Column("lat", minimum=-90, maximum=90), Column("lon", minimum=-180, maximum=180))


def coordinate_columns(path: Path) -> tuple[Column, ...]:
    """c0, c1, … as many as the file has, at least c0; refuses a gap between them."""
    have = {int(found[1]) for name in column_names(path) if (found := re.fullmatch(r"c(0|[1-9]\d*)", name))}
    return tuple(Column(f"c{i}", minimum=-FARTHEST, maximum=FARTHEST) for i in range(max(have, default=0) + 1))


def position_columns(path: Path) -> tuple[Column, ...]:
    """The columns in which a file says where its rows are: c0, c1, …, or x_km and y_km, or lat and lon."""
    names = set(column_names(path))
    for columns in (PLANE, GLOBE):
        if all(column.name in names for column in columns):
            return columns
    if "c0" not in names:
        raise InputError(f"{path}, row 0 (header): no position; c0,c1,… or x_km,y_km or lat,lon are needed")
    return coordinate_columns(path)


def positions(table: Table, columns: tuple[Column, ...]) -> NDArray[np.float64]:
    """One row per position, such that the nearest is so by straight line: degrees become points of the unit sphere."""
    values = np.stack([table[column.name] for column in columns], axis=1)
    if columns != GLOBE:
        return values
    lat, lon = np.radians(values).T
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)
