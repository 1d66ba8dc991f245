"""The processors of the city: a drone's message goes to its swarm, a report becomes an alert."""

from __future__ import annotations

from typing import Any

from nearcast.message import Message
from nearcast.processors import SpoolView, processor

__all__ = ["alert", "to_plain_swarm", "to_swarm"]


@processor("swarm.*", spool=8)
def to_swarm(message: Message, spool: SpoolView) -> bytes:
    """The publication as it came."""
    return message.payload


@processor("plain.*", spool=8)
def to_plain_swarm(message: Message, spool: SpoolView) -> bytes:
    """The same, for the placement that never changes."""
    return message.payload


@processor("alerts.*", spool=100)
def alert(message: Message, spool: SpoolView) -> dict[str, Any]:
    """The report, and how many of its kind the zone had recently."""
    report = message.data
    return {**report, "same_kind": sum(past.data["kind"] == report["kind"] for past in spool)}
