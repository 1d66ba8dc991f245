"""An enriched notification as a sentence."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["metres", "sentence"]

_EARTH_M = 6_371_008.8


def metres(lat: float, lon: float, other_lat: float, other_lon: float) -> float:
    """Great-circle distance."""
    a, b = math.radians(lat), math.radians(other_lat)
    across = math.sin((b - a) / 2) ** 2
    across += math.cos(a) * math.cos(b) * math.sin(math.radians(other_lon - lon) / 2) ** 2
    return 2 * _EARTH_M * math.asin(math.sqrt(across))


def sentence(row: dict[str, Any], place: tuple[float, float], now: float) -> str:
    """A row of a channel for somebody at a place.

    >>> row = {"kind": "fire", "lat": 45.0, "lon": 13.0, "seen": 0.0, "shelter": "Harbour School",
    ...        "shelter_lat": 45.01, "shelter_lon": 13.0}
    >>> sentence(row, (45.00378, 13.0), 190.0)
    'fire, 420 m from you, 3 min ago; nearest open shelter: Harbour School, 690 m'
    """
    text = f"{row['kind']}, {_distance(metres(*place, row['lat'], row['lon']))} from you, {_age(now - row['seen'])}"
    if row.get("shelter") is None:
        return f"{text}; no open shelter within 5 km of it"
    away = _distance(metres(*place, row["shelter_lat"], row["shelter_lon"]))
    return f"{text}; nearest open shelter: {row['shelter']}, {away}"


def _distance(m: float) -> str:
    return f"{m / 1000:.1f} km" if m >= 1000 else f"{round(m, -1):.0f} m"


def _age(seconds: float) -> str:
    return f"{seconds / 60:.0f} min ago" if seconds >= 60 else f"{max(0.0, seconds):.0f} s ago"
