"""What happened in the city, message by message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nearcast.lab.demo.city import BOUND_MS
from nearcast.lab.demo.wording import metres
from nearcast.lab.scenarios.ledger import DeliveryLedger, read_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.lab.demo.city import City
    from nearcast.lab.demo.notes import ChannelSubscription, FedReport, Notes
    from nearcast.lab.scenarios.clients import ClientResults

__all__ = ["CityAccount", "PathLatency", "account_for"]

_PLACE_DOUBT_S = 20.0  # how long a place that was told may take to be the one that counts
_EDGE = 0.02  # places this close to the radius may fall on either side


@dataclass(frozen=True)
class PathLatency:
    """A way that notifications take, with percentiles in milliseconds."""

    path: str
    notifications: int
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class CityAccount:
    """above, plain_above: shares of the drones' deliveries above their bound, with Nearcast and with plain placement.

    longest_gap_s: for which a drone heard nothing of its swarm. failed: publications that no store took.
    """

    paths: tuple[PathLatency, ...]
    above: float
    plain_above: float
    plain_lost: int
    longest_gap_s: float
    lost: int
    duplicated: int
    failed: int
    sentences: tuple[str, ...]

    @property
    def notifications(self) -> int:
        """On all paths."""
        return sum(path.notifications for path in self.paths)


def account_for(city: City, notes: Notes, start: float, seconds: float) -> CityAccount:
    """Judge all that was published within so many seconds from a Unix time on."""
    drones, plain, alerts = (
        read_ledger(replace(city.scenario(prefix), seconds=seconds), start, [results])
        for prefix, results in (("swarm", notes.drones), ("plain", notes.plain), ("swarm", notes.alerts))
    )
    missing, repeated = _channels(notes)
    paths = [
        _ledger_path("drone to swarm, processed at an edge site", drones),
        _ledger_path("report to people of the zone, processed at an edge site", alerts),
    ]
    if notes.subscriptions:
        paths.append(_path("report to people by channels of the data cluster", notes.enriched_ms))
    return CityAccount(
        tuple(paths), _share(drones), _share(plain), plain.lost, longest_gap(notes.drones, start, seconds),
        drones.lost + alerts.lost + missing + notes.not_in_history, drones.repeated + alerts.repeated + repeated,
        drones.failed + alerts.failed, tuple(notes.sentences),
    )  # fmt: skip


def longest_gap(results: ClientResults, start: float, seconds: float) -> float:
    """The longest time between two receipts of one subscriber."""
    longest, last = 0.0, dict[int, float]()
    for subscriber, _, _, at_us in sorted(results.received, key=lambda row: row[3]):
        at = at_us / 1e6 - start
        if 0 <= at <= seconds:
            longest = max(longest, at - last.get(subscriber, at))
            last[subscriber] = at
    return longest


def _ledger_path(name: str, ledger: DeliveryLedger) -> PathLatency:
    return _path(name, ledger.latency_ms[np.isfinite(ledger.latency_ms)].tolist())


def _path(name: str, latencies: Sequence[float]) -> PathLatency:
    figures = np.percentile(latencies, [50, 90, 99]) if latencies else [float("nan")] * 3
    return PathLatency(name, len(latencies), *map(float, figures))


def _share(ledger: DeliveryLedger) -> float:
    return float(ledger.late(BOUND_MS).mean()) if len(ledger) else float("nan")


def _channels(notes: Notes) -> tuple[int, int]:
    """Results that are missing, and those that came twice."""
    missing = repeated = 0
    for subscription in notes.subscriptions:
        repeated += sum(count - 1 for count in subscription.received.values())
        for report in notes.fed:
            if report.at > subscription.since and report.id not in subscription.received:
                missing += _matches(subscription, report, notes)
    return missing, repeated


def _matches(subscription: ChannelSubscription, report: FedReport, notes: Notes) -> bool:
    """Whether a report must have reached a subscription. Near me: wherever its person may have been taken to be."""
    if subscription.channel == "by_type":
        return bool(report.kind == subscription.params["kind"])
    if subscription.channel == "by_area":
        return bool(report.zone == subscription.params["zone"])
    walked = notes.walked[subscription.person]
    before = [place for place in walked if place[0] <= report.at - _PLACE_DOUBT_S][-1:]
    around = [place for place in walked if abs(place[0] - report.at) <= _PLACE_DOUBT_S]
    reach = subscription.params["radius"] * (1 - _EDGE)
    return all(metres(lat, lon, report.lat, report.lon) < reach for _, lat, lon in (*before, *around))
