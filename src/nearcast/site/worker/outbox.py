"""What a worker sends: each message at once; what cannot be sent is counted."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nearcast.nats.connection import ConnectionLostError

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection
    from nearcast.protocol.worker import WorkerStats

__all__ = ["Outbox"]

_log = logging.getLogger(__name__)


class Outbox:
    """Sends over one connection."""

    def __init__(self, connection: Connection, stats: WorkerStats) -> None:
        self._connection, self._stats = connection, stats

    def send(self, subject: str, headers: bytes, payload: bytes, reply: str = "") -> None:
        """Send a message, or count it as dropped when no broker can be reached for too long."""
        try:
            self._connection.send(subject, headers, payload, reply)
        except ConnectionLostError as error:
            self._stats.dropped += 1
            _log.error("%s: not sent: %s", subject, error)
