"""The last report of each site and when it came: the input of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from nearcast.protocol.reports import is_channel

if TYPE_CHECKING:
    from nearcast.protocol.reports import SiteReport

__all__ = ["DIMENSIONS", "FIGURES", "Monitor", "ReportColumns"]

DIMENSIONS = 8  # of coordinates
FIGURES = (
    "producers", "consumers", "producer_deviation", "consumer_deviation", "producer_leg", "consumer_leg",
    "messages_out", "messages_in",
)  # fmt: skip
_figures_of = attrgetter(*FIGURES)


class ReportColumns:
    """The topics of a report as an array: per topic the figures, the producers' and the consumers' centroid.

    Made once when the report arrives, so that a pass of the loop does not convert all reports again.
    """

    def __init__(self, report: SiteReport) -> None:
        self.names = [part.topic for part in report.topics]
        rows = [(*_figures_of(part), *part.producer_centroid, *part.consumer_centroid) for part in report.topics]
        self.values = np.array(rows, dtype=float).reshape(len(rows), len(FIGURES) + 2 * DIMENSIONS)
        self.channels = [part for part in report.topics if is_channel(part.topic)]


@dataclass
class Monitor:
    """Times are of one monotonic clock. A site counts as lost `lost_after` seconds after its last report.

    A site that has registered is expected to report: it has as long for its first report.
    """

    lost_after: float
    reports: dict[str, SiteReport] = field(default_factory=dict)
    columns: dict[str, ReportColumns] = field(default_factory=dict)
    last_seen: dict[str, float] = field(default_factory=dict)
    stores_down: dict[str, float] = field(default_factory=dict)  # stores that do not answer, since when
    departed: dict[str, float] = field(default_factory=dict)  # clients that left their home, since when

    def take(self, report: SiteReport, now: float) -> None:
        """A report arrived."""
        self.reports[report.site] = report
        self.columns[report.site] = ReportColumns(report)
        self.last_seen[report.site] = now
        if report.store:
            self.stores_down.pop(report.site, None)
        else:
            self.stores_down.setdefault(report.site, now)

    def expect(self, site: str, now: float) -> None:
        """A site has registered: its first report is due."""
        self.last_seen[site] = now

    def lost(self, now: float) -> set[str]:
        """The sites that have not reported for too long."""
        return {site for site, seen in self.last_seen.items() if now - seen > self.lost_after}

    def lost_stores(self, now: float) -> set[str]:
        """The stores that have been down for too long at sites that report. A store that restarts is not lost."""
        return {site for site, since in self.stores_down.items() if now - since > self.lost_after}

    def take_departed(self, now: float, after: float) -> list[str]:
        """The clients that departed longer than `after` ago; they are not returned again."""
        expired = [client for client, since in self.departed.items() if now - since > after]
        for client in expired:
            del self.departed[client]
        return expired
