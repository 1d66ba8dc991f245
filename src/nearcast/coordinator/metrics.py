"""A coordinator's metrics; those of the registry and the control loop only while it leads."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from nearcast.coordinator.leader import Leader
    from nearcast.coordinator.leadership import Coordinator

__all__ = ["coordinator_metrics"]


def coordinator_metrics(coordinator: Coordinator) -> Iterable[Metric]:
    """All metrics of one coordinator. In its event loop."""
    leads = coordinator.leading.is_set()
    yield _gauge("nearcast_coordinator_leading", "Whether this coordinator leads", leads)
    yield _gauge("nearcast_coordinator_term", "The highest term that this coordinator has seen", coordinator.lease.term)
    if leads and coordinator.leader is not None:
        yield from _registry(coordinator.leader)
        yield from _passes(coordinator.leader)
        yield from _moves(coordinator.leader)


def _registry(leader: Leader) -> Iterable[Metric]:
    registry, monitor = leader.registry, leader.monitor
    lost = monitor.lost(asyncio.get_running_loop().time()) & registry.sites.keys()
    yield _gauge("nearcast_coordinator_sites", "Registered sites", len(registry.sites))
    yield _gauge("nearcast_coordinator_lost_sites", "Registered sites that do not report", len(lost))
    yield _gauge(
        "nearcast_coordinator_lost_stores", "Stores that do not answer, or cannot write", len(monitor.stores_down)
    )
    yield _gauge("nearcast_coordinator_topics", "Registered topics", len(registry.topics))
    yield _gauge("nearcast_coordinator_clients", "Registered clients", len(registry.clients))


def _passes(leader: Leader) -> Iterable[Metric]:
    loop = leader.control_loop
    yield CounterMetricFamily("nearcast_coordinator_passes", "Passes of the control loop", value=loop.passes)
    text = "Time spent in passes of the control loop, moves included"
    yield CounterMetricFamily("nearcast_coordinator_pass_seconds", text, value=loop.pass_seconds)
    anomalies = GaugeMetricFamily(
        "nearcast_coordinator_anomalies", "Anomalies found by the last pass, by kind", labels=["kind"]
    )
    for kind, number in Counter(anomaly.kind for anomaly in loop.anomalies).items():
        anomalies.add_metric([kind], number)
    yield anomalies


def _moves(leader: Leader) -> Iterable[Metric]:
    yield _gauge("nearcast_coordinator_moves_in_progress", "Moves in the journal", len(leader.registry.moves))
    moves = CounterMetricFamily(
        "nearcast_coordinator_moves", "Moves that have ended", labels=["kind", "goal", "outcome"]
    )
    for (kind, goal, done), number in leader.executor.history.counts.items():
        moves.add_metric([kind, goal, "done" if done else "failed"], number)
    seconds = CounterMetricFamily("nearcast_coordinator_move_seconds", "Time that moves took", labels=["kind"])
    for kind, spent in leader.executor.history.seconds.items():
        seconds.add_metric([kind], spent)
    yield from (moves, seconds)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=float(value))
