"""Distances on the globe. Needs NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["great_circle_km", "local_plane_km"]

EARTH_RADIUS_KM = 6371.0088  # mean radius (IUGG)


def great_circle_km(lat: ArrayLike, lon: ArrayLike, other_lat: ArrayLike, other_lon: ArrayLike) -> NDArray[np.float64]:
    """Great-circle distance of positions in degrees, by the haversine formula; arguments are broadcast."""
    a, b, c, d = (np.radians(np.asarray(v, dtype=np.float64)) for v in (lat, lon, other_lat, other_lon))
    half = np.sin((c - a) / 2) ** 2 + np.cos(a) * np.cos(c) * np.sin((d - b) / 2) ** 2
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(half, 0, 1))))


def local_plane_km(
    lat: ArrayLike, lon: ArrayLike, centre: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """East and north of a centre in km; good over a city."""
    per_degree = np.pi / 180 * EARTH_RADIUS_KM
    lat, lon = np.asarray(lat, dtype=np.float64), np.asarray(lon, dtype=np.float64)
    return (lon - centre[1]) * per_degree * np.cos(np.radians(centre[0])), (lat - centre[0]) * per_degree
