"""The last report of each site and when it came: the input of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.site_leases import SiteLeases
from nearcast.domain.ranges import DIMENSIONS
from nearcast.domain.topic import covers
from nearcast.protocol.reports import TopicLag, is_channel

if TYPE_CHECKING:
    from nearcast.protocol.reports import SiteReport

__all__ = ["DIMENSIONS", "FIGURES", "Monitor", "ReportColumns", "has_processor"]

FIGURES = (
    "producers", "consumers", "producer_deviation", "consumer_deviation", "producer_leg", "consumer_leg",
    "messages_out", "messages_in", "samples", "p90_ms",
)  # fmt: skip
_figures_of = attrgetter(*FIGURES)


class ReportColumns:
    """The topics of a report as an array: per topic the figures, the producers' and the consumers' centroid.

    way_topic, way_site, way_worst: the measured ways of producers (0) and consumers (1); topics by their position in
    `names`, sites by theirs in `way_sites`.

    Made once when the report arrives, so that a pass of the loop does not convert all reports again.
    """

    def __init__(self, report: SiteReport) -> None:
        self.names = [part.topic for part in report.topics]
        rows = [(*_figures_of(part), *part.producer_centroid, *part.consumer_centroid) for part in report.topics]
        self.values = np.array(rows, dtype=float).reshape(len(rows), len(FIGURES) + 2 * DIMENSIONS)
        self.channels = [part for part in report.topics if is_channel(part.topic)]
        self.way_sites: list[str] = sorted(
            {way.site for part in report.topics for way in (*part.producer_ways, *part.consumer_ways)}
        )
        number = {site: n for n, site in enumerate(self.way_sites)}
        self.way_topic, self.way_site, self.way_worst = [], [], []
        for role in ("producer_ways", "consumer_ways"):
            ways = [(n, way) for n, part in enumerate(report.topics) for way in getattr(part, role)]
            self.way_topic.append(np.fromiter((n for n, _ in ways), np.int64, len(ways)))
            self.way_site.append(np.fromiter((number[way.site] for _, way in ways), np.int64, len(ways)))
            self.way_worst.append(np.fromiter((way.worst for _, way in ways), float, len(ways)))


@lru_cache(maxsize=1 << 17)
def has_processor(patterns: tuple[str, ...], topic: str) -> bool:
    """Whether exactly one of the processors handles a topic or a whole family of topics."""
    return sum(covers(pattern, topic) for pattern in patterns) == 1


@dataclass
class Monitor:
    """Times are of one monotonic clock. A site counts as lost `lost_after` seconds after its last report.

    A site that has registered is expected to report: it has as long for its first report.
    """

    lost_after: float
    reports: dict[str, SiteReport] = field(default_factory=dict)
    columns: dict[str, ReportColumns] = field(default_factory=dict)
    leases: SiteLeases = field(init=False)
    covers_from: dict[str, float] = field(default_factory=dict)  # since when the last report's samples were taken
    stores_down: dict[str, float] = field(default_factory=dict)  # stores that do not answer or cannot write, since when
    departed: dict[str, float] = field(default_factory=dict)  # clients that left their home, since when

    def __post_init__(self) -> None:
        self.leases = SiteLeases(self.lost_after)

    def take(self, report: SiteReport, now: float) -> None:
        """A report arrived."""
        self.reports[report.site] = report
        self.columns[report.site] = ReportColumns(report)
        self.leases.heard(report.site, now)
        self.covers_from[report.site] = now - report.seconds
        if report.store:
            self.stores_down.pop(report.site, None)
        else:
            self.stores_down.setdefault(report.site, now)

    def lag(self, topic: str) -> TopicLag:
        """The most that a store of a topic says is not processed."""
        found = [lag for report in self.reports.values() for lag in report.lags if lag.topic == topic]
        return max(found, key=lambda lag: lag.waiting, default=TopicLag(topic, 0, 0.0))

    def given_up(self, topic: str) -> tuple[int, int]:
        """How many publications became dead letters, and how many had no room, in the workers that have the topic."""
        workers = [worker for report in self.reports.values() for worker in report.workers]
        found = [one for worker in workers for one in worker.topics if one.topic == topic]
        return sum(one.dead_letters for one in found), sum(one.deferred for one in found)

    def lags(self) -> list[TopicLag]:
        """Of each topic that is not all processed."""
        names = {lag.topic for report in self.reports.values() for lag in report.lags}
        return [self.lag(name) for name in sorted(names)]

    def expect(self, site: str, now: float) -> None:
        """A site has registered: its first report is due."""
        self.leases.heard(site, now)

    def lost(self, now: float) -> set[str]:
        """The sites that have not reported for too long."""
        return self.leases.lost(now)

    def lost_stores(self, now: float) -> set[str]:
        """The stores that have been down for too long at sites that report. A store that restarts is not lost."""
        return {site for site, since in self.stores_down.items() if now - since > self.lost_after}

    def can_process(self, site: str, topic: str) -> bool:
        """Whether a site has a processor for a topic, as far as is known."""
        report = self.reports.get(site)
        return report is None or report.processors is None or has_processor(tuple(report.processors), topic)

    def take_departed(self, now: float, after: float) -> list[str]:
        """The clients that departed longer than `after` ago; they are not returned again."""
        expired = [client for client, since in self.departed.items() if now - since > after]
        for client in expired:
            del self.departed[client]
        return expired
