"""The processor of every topic of a scenario: each publication becomes one notification with the same content."""

from __future__ import annotations

from nearcast.message import Message
from nearcast.processors import SpoolView, processor

__all__ = ["echo"]


@processor(">", spool=1)
def echo(message: Message, spool: SpoolView) -> bytes:
    """The publication as it came."""
    return message.payload
