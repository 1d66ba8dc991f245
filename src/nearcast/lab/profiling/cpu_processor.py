"""A processor that uses as much CPU time as the message asks for, so that load can be set exactly."""

from __future__ import annotations

import time

from nearcast.message import Message
from nearcast.processors import SpoolView, processor

__all__ = ["burn"]


@processor("profile.*", spool=1, timeout=60)
def burn(message: Message, spool: SpoolView) -> bytes:
    """Work for so many milliseconds of CPU time, then answer with the message as it came."""
    until = time.process_time() + float(message.payload) / 1000
    while time.process_time() < until:
        pass
    return message.payload
