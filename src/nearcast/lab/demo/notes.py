"""What the clients of the city did and saw, noted as it happens; all clients share one process and one clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from nearcast.lab.scenarios.clients import ClientResults

__all__ = ["ChannelSubscription", "FedReport", "Notes"]


@dataclass(frozen=True)
class FedReport:
    """A report that the cloud's store has. at: Unix seconds, before it was fed."""

    id: str
    kind: str
    zone: str
    lat: float
    lon: float
    at: float


@dataclass
class ChannelSubscription:
    """A person's subscription to a channel. since: Unix seconds from which on nothing may be missed."""

    person: int
    channel: str
    params: dict[str, Any]
    since: float = float("inf")
    received: Counter[str] = field(default_factory=Counter)


@dataclass
class Notes:
    """drones, plain, alerts: for the lab's ledger. walked: where each person said to be, with the Unix time."""

    drones: ClientResults = field(default_factory=ClientResults)
    plain: ClientResults = field(default_factory=ClientResults)
    alerts: ClientResults = field(default_factory=ClientResults)
    fed: list[FedReport] = field(default_factory=list)
    walked: dict[int, list[tuple[float, float, float]]] = field(default_factory=dict)
    subscriptions: list[ChannelSubscription] = field(default_factory=list)
    enriched_ms: list[float] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    not_in_history: int = 0
    reconnects: int = 0

    @property
    def notifications(self) -> int:
        """All that reached a subscriber, the twins' not counted."""
        return len(self.drones.received) + len(self.alerts.received) + len(self.enriched_ms)
