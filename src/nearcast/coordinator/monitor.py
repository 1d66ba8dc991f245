"""The last report of each site, and when it came: what the model is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.coordinator.snapshot import TopicColumns

if TYPE_CHECKING:
    from nearcast.protocol.reports import SiteReport

__all__ = ["Monitor"]


@dataclass
class Monitor:
    """Times are of one steady clock. A site that registered is given its first period before it counts as lost."""

    lost_after: float
    reports: dict[str, SiteReport] = field(default_factory=dict)
    columns: dict[str, TopicColumns] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    stores_down: dict[str, float] = field(default_factory=dict)  # stores that do not answer, since when

    def take(self, report: SiteReport, now: float) -> None:
        """A report came."""
        self.reports[report.site] = report
        self.columns[report.site] = TopicColumns(report)
        self.heard[report.site] = now
        if report.store:
            self.stores_down.pop(report.site, None)
        else:
            self.stores_down.setdefault(report.site, now)

    def expect(self, site: str, now: float) -> None:
        """A site is known; it should report from now on."""
        self.heard.setdefault(site, now)

    def lost(self, now: float) -> set[str]:
        """The sites that were not heard of for too long."""
        return {site for site, heard in self.heard.items() if now - heard > self.lost_after}

    def lost_stores(self, now: float) -> set[str]:
        """The sites that are there and whose store is not, for too long: one that starts again is no reason to move."""
        return {site for site, since in self.stores_down.items() if now - since > self.lost_after}
