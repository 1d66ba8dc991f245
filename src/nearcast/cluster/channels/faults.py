"""What went wrong in channels, reported to the log, the counters, the catalog (for operators) and to subscribers."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nearcast.nats import subjects

if TYPE_CHECKING:
    from nearcast.cluster.channels.running_channel import RunningChannel
    from nearcast.cluster.driver_progress import DriverProgress
    from nearcast.cluster.nats_source.blocking_connection import BlockingConnection
    from nearcast.nats.catalog import Catalog

__all__ = ["ChannelFault", "FaultLog", "FaultReports"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChannelFault:
    """A fault of a channel. key: of the subscription that is switched off. record: the one without results.

    Without either, the channel itself is switched off, or had no results once (`off` tells which).
    """

    channel: str
    reason: str
    key: str = ""
    record: int | None = None
    off: bool = True

    def __str__(self) -> str:
        if self.key:
            return f"channel {self.channel}: subscription {self.key} is switched off: {self.reason}"
        if self.record is not None:
            return f"channel {self.channel}: no results for record {self.record}: {self.reason}"
        state = "is switched off" if self.off else "had no results for one batch"
        return f"channel {self.channel} {state}: {self.reason}"


class FaultLog:
    """Faults wait here until the driver reports them; any thread may add."""

    def __init__(self) -> None:
        self._waiting: list[ChannelFault] = []
        self._lock = threading.Lock()

    def add(self, fault: ChannelFault) -> None:
        with self._lock:
            self._waiting.append(fault)

    def take(self) -> list[ChannelFault]:
        """The faults since the last call."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return waiting


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
