"""The reports of a site's clients: the last one of each client that is present."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from nearcast.nats import subjects
from nearcast.protocol.reports import ClientReport

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["ClientReports"]

_log = logging.getLogger(__name__)


class ClientReports:
    """Receives the reports of one site's clients. A client that is silent for `expire_after` seconds is gone."""

    def __init__(self, site: str, connection: Connection, expire_after: float) -> None:
        self._site, self._connection, self._expire_after = site, connection, expire_after
        self._received: dict[str, tuple[float, ClientReport]] = {}
        self._decode = msgspec.msgpack.Decoder(ClientReport).decode

    async def start(self) -> None:
        """Receive from now on."""
        await self._connection.subscribe_raw(subjects.client_reports(self._site), self._receive)

    def current(self) -> dict[str, ClientReport]:
        """The last report of each client that is present."""
        oldest = asyncio.get_running_loop().time() - self._expire_after
        self._received = {name: entry for name, entry in self._received.items() if entry[0] >= oldest}
        return {name: report for name, (_, report) in self._received.items()}

    def _receive(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        try:
            report = self._decode(payload)
        except msgspec.DecodeError as error:
            _log.warning("a client's report is unreadable: %s", error)
            return
        if report.seconds <= 0:  # its last one
            self._received.pop(report.client, None)
        else:
            self._received[report.client] = (asyncio.get_running_loop().time(), report)
