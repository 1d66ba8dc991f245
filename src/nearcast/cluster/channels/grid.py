"""Distance and grid cells on the globe as SQL, so that "within a radius" becomes an equality for a hash join.

The globe is cut into rows of equal height and each row into cells of equal width, no smaller than the radius in either
direction. Two points at most a radius apart lie in the same or in neighbouring cells. One side of the join is copied
into the (at most nine) cells around it, the other keeps its own cell: each pair is joined exactly once, then filtered
by the exact distance. Sizes are 64 m times a power of two, called the *level*.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from nearcast.coordinates.geography import EARTH_RADIUS_KM

__all__ = ["DISTANCE", "FUNCTION", "cell", "cells_around", "height_of", "heights_of", "level_of", "levels_of"]

FUNCTION = "distance"
_RADIUS = EARTH_RADIUS_KM * 1000
_SMALLEST = 64.0
_METRES_PER_DEGREE = 111_000.0  # a little less than it is, so that rows are a little higher than they must be
_LEVELS = 19  # the last one has cells larger than half the way round the globe
# A row with room for fewer cells, at the poles, is one cell.
_FEWEST = 8

# `least` passes over what is null or no number: the last term makes the distance of an unknown point unknown.
DISTANCE = f"""CREATE OR REPLACE TEMPORARY FUNCTION {FUNCTION}(lat1 DOUBLE, lon1 DOUBLE, lat2 DOUBLE, lon2 DOUBLE)
RETURNS DOUBLE COMMENT 'metres between two points, along the globe'
RETURN 2 * {_RADIUS}D * asin(least(1D, sqrt(pow(sin(radians(lat2 - lat1) / 2), 2)
  + cos(radians(lat1)) * cos(radians(lat2)) * pow(sin(radians(lon2 - lon1) / 2), 2))))
  + 0D * (lat1 + lon1 + lat2 + lon2)"""


def levels_of(radii: NDArray[np.float64]) -> NDArray[np.int64]:
    """The smallest level whose cells are not smaller than the radius, for each."""
    levels = np.ceil(np.log2(np.maximum(radii, _SMALLEST) / _SMALLEST))
    return np.minimum(levels, _LEVELS).astype(np.int64)


def level_of(radius: float) -> int:
    """As `levels_of`, for one radius."""
    return int(levels_of(np.array([radius], dtype=np.float64))[0])


def heights_of(levels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The height of the rows of each level, in degrees."""
    heights: NDArray[np.float64] = _SMALLEST * np.exp2(levels) / _METRES_PER_DEGREE
    return heights


def height_of(level: int) -> float:
    """The height of a level's rows, in degrees."""
    return _SMALLEST * 2.0**level / _METRES_PER_DEGREE


def cell(lat: str, lon: str, level: str, height: str) -> str:
    """SQL: the cell of a point at a level, of which the height of rows is given, too."""
    row = f"floor(({lat} + 90D) / {height})"
    return _id(level, row, f"floor(pmod({lon} + 180D, 360D) * {_count(row, height)} / 360D)")


def cells_around(lat: str, lon: str, levels: Iterable[int], prefix: str = "_") -> str:
    """SQL: an array of the cells around a point, at each of some levels. prefix: of names unknown to lat and lon."""
    n, dx, row = f"{prefix}n", f"{prefix}dx", f"{prefix}row"
    parts = []
    for level in sorted(set(levels)):
        height = f"{height_of(level)!r}D"
        # The inner arrays have one element each: they only give a name to what is used more than once.
        columns = f"pmod(floor(pmod({lon} + 180D, 360D) * {n} / 360D) + {dx}, {n})"
        cells = f"transform(array(-1L, 0L, 1L), {dx} -> {_id(str(level), row, columns)})"
        counted = f"flatten(transform(array({_count(row, height)}), {n} -> {cells}))"
        first = f"floor(({lat} + 90D) / {height})"
        parts.append(f"flatten(transform(array({first} - 1L, {first}, {first} + 1L), {row} -> {counted}))")
    if not parts:
        return "array(cast(NULL AS BIGINT))"
    return f"array_distinct(concat({', '.join(parts)}))"


def _count(row: str, height: str) -> str:
    """How many cells a row has. Its width is that of the neighbouring row nearer to the pole, with a margin for the
    curvature."""
    edge = f"least(90D, greatest(abs({row} * {height} - 90D), abs(({row} + 1) * {height} - 90D)) + {height})"
    count = f"floor(360D * cos(radians({edge})) / ({height} * 1.05D))"
    return f"(CASE WHEN {count} < {_FEWEST} THEN 1L ELSE {count} END)"


def _id(level: str, row: str, column: str) -> str:
    return f"(shiftleft(cast({level} AS BIGINT), 42) + shiftleft(cast({row} AS BIGINT), 21) + cast({column} AS BIGINT))"
