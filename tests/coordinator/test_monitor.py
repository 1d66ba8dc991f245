"""When sites and stores count as lost."""

from __future__ import annotations

from nearcast.coordinator.monitor import Monitor
from nearcast.protocol.reports import BrokerFigures, SiteReport


def report(*, store: bool) -> SiteReport:
    return SiteReport("west", 1, None, BrokerFigures(), store, [], [])


def test_a_site_is_lost_when_it_is_silent_and_a_store_when_its_site_says_so_long_enough() -> None:
    monitor = Monitor(lost_after=20.0)
    monitor.expect("west", 0.0)
    monitor.take(report(store=False), 10.0)
    assert monitor.lost_stores(30.0) == set()
    monitor.take(report(store=True), 30.0)  # it was only starting again
    assert monitor.lost_stores(100.0) == set()
    for now in (40.0, 50.0, 60.0):
        monitor.take(report(store=False), now)
    assert monitor.lost_stores(60.0) == set()
    assert monitor.lost_stores(60.5) == {"west"}
    assert monitor.lost(80.0) == set()
    assert monitor.lost(80.5) == {"west"}
