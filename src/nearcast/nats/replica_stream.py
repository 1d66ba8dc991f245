"""What the stream of a topic says of itself: whether it takes messages, and whether it has those from before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.nats import subjects

if TYPE_CHECKING:
    from nats.js.api import StreamConfig

__all__ = ["COPYING", "is_copying", "keeps", "retired"]

COPYING = "nearcast-copying"  # in the metadata of a stream whose past is not all there yet


def retired(stream: str) -> str:
    """The subject of a stream that keeps what it has and takes nothing more."""
    return f"retired.{stream}"


def is_copying(config: StreamConfig) -> bool:
    """Whether the past is still to come from another store."""
    return COPYING in (config.metadata or {})


def keeps(config: StreamConfig, topic: str) -> bool:
    """Whether a stream takes the messages of a topic and has its past."""
    return subjects.publications(topic) in (config.subjects or []) and not is_copying(config)
