"""Where clients are: what they say of it in the reports to their homes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.nats import subjects
from nearcast.nats.boundary import Receiver
from nearcast.protocol.reports import ReportedPosition

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.connection import Connection

__all__ = ["ClientPositions", "PlacedClient"]

_EXPIRE_AFTER = 60.0
_MOST = 10_000


@dataclass(frozen=True)
class PlacedClient:
    """A client with the site it is connected to, latitude and longitude."""

    name: str
    home: str
    position: tuple[float, float]


class ClientPositions:
    """Of the clients that tell theirs, as many as a browser can draw; forgotten a minute after the last report."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._placed: dict[str, tuple[float, PlacedClient]] = {}

    async def follow(self, connection: Connection) -> None:
        """Listen to the reports of all clients, as long as this connection is open."""
        receiver = Receiver("position of a client", ReportedPosition, "msgpack", self.take)
        await connection.subscribe_raw(subjects.client_reports("*", "*"), receiver)

    def take(self, subject: str, reply: str, report: ReportedPosition) -> None:
        """Note what a report says."""
        home = subject.split(".")[-2]
        if subject != subjects.client_reports(home, report.client):
            return
        known = self._placed.get(report.client)
        if report.position is None or report.seconds <= 0:  # its last report at a site, perhaps after one at the next
            if known is not None and known[1].home == home:
                del self._placed[report.client]
        elif known is not None or len(self._placed) < _MOST:
            self._placed[report.client] = self._clock(), PlacedClient(report.client, home, report.position)

    def now(self) -> list[PlacedClient]:
        """Those that reported lately."""
        oldest = self._clock() - _EXPIRE_AFTER
        self._placed = {name: entry for name, entry in self._placed.items() if entry[0] >= oldest}
        return [placed for _, placed in self._placed.values()]
