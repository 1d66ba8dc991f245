"""An enriched notification as a sentence."""

from __future__ import annotations

from typing import Any

from nearcast.coordinates.geography import great_circle_km

__all__ = ["metres", "sentence"]


def metres(lat: float, lon: float, other_lat: float, other_lon: float) -> float:
    """Great-circle distance."""
    return 1000 * float(great_circle_km(lat, lon, other_lat, other_lon))


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
