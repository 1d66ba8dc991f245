"""Warn pedestrians and drivers who come too close: the motivating case of the RELOC paper, Section 4.

Everybody publishes position and velocity. Two of different kinds that come within reach while their distance shrinks
cause one warning for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nearcast.message import Message
from nearcast.processors import SpoolView, processor

REACH_METRES = 10.0


@processor("road.*", spool=200, timeout=2.0)
def warn(message: Message, spool: SpoolView) -> Iterator[dict[str, Any]]:
    """Compare the publisher's position with the last known one of all others of the other kind."""
    me = message.data
    seen = {me["who"]}
    for past in reversed(spool):
        other = past.data
        if other["who"] in seen:
            continue
        seen.add(other["who"])
        if other["kind"] == me["kind"]:
            continue
        dx, dy = other["x"] - me["x"], other["y"] - me["y"]
        distance = (dx * dx + dy * dy) ** 0.5
        closing = dx * (other["vx"] - me["vx"]) + dy * (other["vy"] - me["vy"]) < 0
        if distance < REACH_METRES and closing:
            yield {"warn": [me["who"], other["who"]], "distance": round(distance, 1)}
