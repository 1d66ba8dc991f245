"""What went wrong in channels, for those who must know: the operator and the subscriber."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["ChannelFault", "FaultLog"]


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
