"""The last report of each site, and when it came: what the model is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.coordinator.snapshot import TopicColumns

if TYPE_CHECKING:
    from nearcast.wire.reports import SiteReport

__all__ = ["Monitor"]


@dataclass
class Monitor:
    """Times are of one steady clock. A site that registered is given its first period before it counts as lost."""

    lost_after: float
    reports: dict[str, SiteReport] = field(default_factory=dict)
    columns: dict[str, TopicColumns] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)

    def take(self, report: SiteReport, now: float) -> None:
        """A report came."""
        self.reports[report.site] = report
        self.columns[report.site] = TopicColumns(report)
        self.heard[report.site] = now

    def expect(self, site: str, now: float) -> None:
        """A site is known; it should report from now on."""
        self.heard.setdefault(site, now)

    def lost(self, now: float) -> set[str]:
        """The sites that were not heard of for too long."""
        return {site for site, heard in self.heard.items() if now - heard > self.lost_after}
