"""Reports the faults of channels: to the log, the counters, the catalog (for operators) and to subscribers."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nearcast.nats import subjects

if TYPE_CHECKING:
    from nearcast.cluster.channels.faults import ChannelFault
    from nearcast.cluster.channels.running_channel import RunningChannel
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.cluster.nats_source.blocking_connection import BlockingConnection
    from nearcast.nats.catalog import Catalog

__all__ = ["FaultReports"]

_log = logging.getLogger(__name__)


class FaultReports:
    """The catalog's list of faults. It begins empty: a new driver tries everything again."""

    def __init__(self, connection: BlockingConnection, catalog: Catalog, progress: DriverProgress) -> None:
        self._connection, self._catalog, self._progress = connection, catalog, progress
        self._noted: set[str] = set(connection.call(catalog.faults()))
        self._waiting: deque[ChannelFault] = deque()

    def report(self, faults: Iterable[ChannelFault], running: Mapping[str, RunningChannel]) -> None:
        """Report new faults, and forget those of channels and subscriptions that are gone. What cannot be written to
        the catalog now is written by the next call."""
        for fault in faults:
            _log.error("%s", fault)
            self._progress.note(fault.channel, problem=str(fault))
            self._waiting.append(fault)
        for name in [name for name in self._noted if not _exists(name, running)]:
            self._connection.call(self._catalog.clear_fault(name))
            self._noted.discard(name)
        while self._waiting:  # one stays until it is written: the store may be away for a while
            fault = self._waiting[0]
            reason = fault.reason if fault.record is None else f"record {fault.record}: {fault.reason}"
            self._connection.call(self._catalog.note_fault(fault.channel, fault.key, reason))
            self._noted.add(f"{fault.channel}.{fault.key}" if fault.key else fault.channel)
            if fault.key:
                self._tell_subscriber(fault)
            self._waiting.popleft()

    def _tell_subscriber(self, fault: ChannelFault) -> None:
        """A result without rows and with the reason."""
        payload = {"channel": fault.channel, "key": fault.key, "execution": 0, "rows": [], "error": fault.reason}
        message_id = f"{fault.channel}:{fault.key}:fault:{time.time_ns()}"
        subject = subjects.channel_results(fault.channel, fault.key)
        self._connection.publish([(subject, message_id, json.dumps(payload).encode())])


def _exists(name: str, running: Mapping[str, RunningChannel]) -> bool:
    channel, _, key = name.partition(".")
    return channel in running and (not key or key in running[channel].off)
