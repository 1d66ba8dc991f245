"""The panels of deploy/grafana in the console: what each shows, and the last quarter of an hour of it.

Each panel keeps its ten largest series of each moment, as the dashboard asks Prometheus for: memory is bounded whatever
the number of sites and topics.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearcast.protocol.data_cluster import DataClusterState
    from nearcast.web.snapshot import Snapshot

__all__ = ["PANELS", "PERIOD", "DashboardPanel", "DashboardReading", "PanelHistory"]

PERIOD = 5  # seconds between two points
_POINTS = 180
_MOST_SERIES = 10
_MINUTES = 60
Values = dict[str, float]


@dataclass(frozen=True)
class DashboardReading:
    """The present state, and that of the point before, so many seconds ago. cluster: the data cluster, if one runs."""

    now: Snapshot
    before: Snapshot
    seconds: float
    cluster: DataClusterState | None = None
    cluster_before: DataClusterState | None = None
    cluster_seconds: float = 0.0


@dataclass(frozen=True)
class DashboardPanel:
    """title, unit, row: as in the dashboard of Grafana. read: the series of a moment by name, in this unit."""

    row: str
    title: str
    unit: str
    read: Callable[[DashboardReading], Values]
    text: str = ""


class PanelHistory:
    """Points of all panels. times: seconds since 1970, one for each point. clock: gives them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.times: deque[float] = deque(maxlen=_POINTS)
        self.points: dict[str, deque[Values]] = {panel.title: deque(maxlen=_POINTS) for panel in PANELS}
        self._letters: deque[float] = deque([0.0], maxlen=_MINUTES)  # dead letters by minute
        self._minute = int(clock() // 60)

    def add(self, reading: DashboardReading) -> None:
        """Take a point of each panel."""
        self.times.append(self._clock())
        for panel in PANELS:
            found = panel.read(reading)
            names = heapq.nlargest(_MOST_SERIES, found, key=lambda name: found[name])
            self.points[panel.title].append({name: found[name] for name in names})
        minute = int(self._clock() // 60)
        for _ in range(min(minute - self._minute, _MINUTES)):
            self._letters.append(0.0)
        self._minute = max(minute, self._minute)
        self._letters[-1] += sum(_increases(reading, "dead_letters").values())

    def series(self, title: str) -> dict[str, list[float | None]]:
        """The points of each series of a panel; none where it was not among the largest. The largest at last first."""
        points = self.points[title]
        names = dict.fromkeys(name for values in reversed(points) for name in values)
        return {name: [values.get(name) for values in points] for name in names}

    def dead_letters(self) -> int:
        """Of the last hour, or since the console was started."""
        return round(sum(self._letters))


def _of_topics(field: str, scale: float = 1.0) -> Callable[[DashboardReading], Values]:
    def read(reading: DashboardReading) -> Values:
        return {topic["topic"]: topic[field] * scale for topic in reading.now.topics if topic.get(field) is not None}

    return read


def _of_sites(field: str) -> Callable[[DashboardReading], Values]:
    def read(reading: DashboardReading) -> Values:
        return {site["site"]: site[field] for site in reading.now.sites if site.get(field) is not None}

    return read


def _share_of_bound(reading: DashboardReading) -> Values:
    return {
        topic["topic"]: topic["measured_p90_ms"] / topic["bound_ms"]
        for topic in reading.now.topics
        if topic.get("measured_p90_ms") is not None and topic.get("bound_ms")
    }


def _round_trips(reading: DashboardReading) -> Values:
    return {
        f"{site['site']} to {peer}": milliseconds / 1000
        for site in reading.now.sites
        for peer, milliseconds in site["round_trips_ms"].items()
    }


def _of_channels(reading: DashboardReading) -> Values:
    found: Values = {}
    for site in reading.now.sites:
        for channel, milliseconds in site.get("channels_p90_ms", {}).items():
            found[channel] = max(found.get(channel, 0.0), milliseconds / 1000)
    return found


def _utilisation(reading: DashboardReading) -> Values:
    return {
        f"{site['site']} {worker}": busy
        for site in reading.now.sites
        for worker, busy in site.get("workers_busy", {}).items()
    }


def _increases(reading: DashboardReading, field: str) -> Values:
    """By site, of a count of its workers; a restarted worker counts from zero again."""
    before = {site["site"]: site.get(field) for site in reading.before.sites}
    found: Values = {}
    for site in reading.now.sites:
        now, then = site.get(field), before.get(site["site"])
        if now is not None and then is not None:
            found[site["site"]] = float(max(0, now - then))
    return found


def _troubles(reading: DashboardReading) -> Values:
    fields = {"late": "late", "deferred": "deferred", "dead letters": "dead_letters", "dropped": "dropped"}
    return {name: sum(_increases(reading, field).values()) / reading.seconds for name, field in fields.items()}


def _moves(reading: DashboardReading) -> Values:
    now, before = (state.status.get("moves_ended", {}) for state in (reading.now, reading.before))
    return {kind: 60 * max(0, count - before.get(kind, 0)) / reading.seconds for kind, count in now.items()}


def _time_of_a_pass(reading: DashboardReading) -> Values:
    now, before = reading.now.status, reading.before.status
    if "passes" not in now or "passes" not in before:
        return {}
    passes, seconds = now["passes"] - before["passes"], now["pass_seconds"] - before["pass_seconds"]
    return {now["leader"]: seconds / passes} if passes > 0 and now["leader"] == before["leader"] else {}


def _anomalies(reading: DashboardReading) -> Values:
    found: Mapping[str, Any] = reading.now.status.get("anomalies", {})
    return {kind: float(count) for kind, count in found.items()}


def _records_and_results(reading: DashboardReading) -> Values:
    if reading.cluster is None or reading.cluster_before is None or reading.cluster_seconds <= 0:
        return {}
    before = {one.name: one for one in reading.cluster_before.producers}
    found: Values = {}
    for one in reading.cluster.producers:
        last = before.get(one.name, one)
        found[f"{one.name} in"] = max(0, one.rows - last.rows) / reading.cluster_seconds
        found[f"{one.name} out"] = max(0, one.results - last.results) / reading.cluster_seconds
    return found


def _of_producers(field: str) -> Callable[[DashboardReading], Values]:
    def read(reading: DashboardReading) -> Values:
        producers = reading.cluster.producers if reading.cluster is not None else []
        return {one.name: float(getattr(one, field)) for one in producers}

    return read


_SLOWEST = "Publication to receipt, one way, as clients measured it; the ten slowest."
PANELS = (
    DashboardPanel("Latency", "Delivered latency, p90, by topic", "s", _of_topics("measured_p90_ms", 0.001), _SLOWEST),
    DashboardPanel(
        "Latency", "Latency as a share of the bound", "percentunit", _share_of_bound,
        "Above 100 %: the topic is above its bound.",
    ),
    DashboardPanel("Latency", "In the worker, p90, by topic", "s", _of_topics("in_worker_p90_ms", 0.001)),
    DashboardPanel("Latency", "Round trips between sites", "s", _round_trips, "The ten longest."),
    DashboardPanel("Latency", "Channels, record to receipt, p90", "s", _of_channels),
    DashboardPanel("Traffic and load", "Messages sent by brokers", "cps", _of_sites("messages_out")),
    DashboardPanel("Traffic and load", "Bytes sent by brokers", "Bps", _of_sites("bytes_out")),
    DashboardPanel("Traffic and load", "Connections", "none", _of_sites("connections")),
    DashboardPanel("Traffic and load", "Broker CPU", "percentunit", _of_sites("cpu")),
    DashboardPanel("Traffic and load", "Worker utilisation", "percentunit", _utilisation),
    DashboardPanel("Traffic and load", "Processed", "cps", _of_sites("processed_per_s")),
    DashboardPanel("Durability", "Unprocessed, by topic", "none", _of_topics("waiting")),
    DashboardPanel("Durability", "Oldest unprocessed", "s", _of_topics("oldest_s")),
    DashboardPanel("Durability", "Late, deferred, dead, dropped", "cps", _troubles),
    DashboardPanel("Control plane", "Moves per minute", "none", _moves),
    DashboardPanel("Control plane", "Time of a pass", "s", _time_of_a_pass),
    DashboardPanel("Control plane", "Anomalies", "none", _anomalies),
    DashboardPanel("Data cluster", "Records and results", "cps", _records_and_results),
    DashboardPanel("Data cluster", "Lag", "none", _of_producers("lag")),
    DashboardPanel("Data cluster", "Time of the last batch", "s", _of_producers("seconds")),
)  # fmt: skip
