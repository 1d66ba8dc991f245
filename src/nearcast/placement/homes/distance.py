"""Distances from positions, for instances whose delays are not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["globe_km", "plane_km"]

EARTH_RADIUS_KM = 6371.0


def plane_km(from_xy: NDArray[np.float64], to_xy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Straight lines between all pairs of (x, y) in kilometres."""
    return np.hypot(*(from_xy[:, None, axis] - to_xy[None, :, axis] for axis in (0, 1)))


def globe_km(from_lat_lon: NDArray[np.float64], to_lat_lon: NDArray[np.float64]) -> NDArray[np.float64]:
    """Great circles between all pairs of (latitude, longitude) in degrees, by the haversine formula."""
    (lat1, lon1), (lat2, lon2) = np.radians(from_lat_lon.T), np.radians(to_lat_lon.T)
    lat1, lon1 = lat1[:, None], lon1[:, None]
    half: NDArray[np.float64] = (
        np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    )
    angle: NDArray[np.float64] = 2 * np.arcsin(np.sqrt(np.minimum(half, 1.0)))
    return EARTH_RADIUS_KM * angle
