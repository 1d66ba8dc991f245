"""When sites and stores count as lost."""

from __future__ import annotations

from nearcast.coordinator.detectors import unprocessed
from nearcast.coordinator.monitor import Monitor
from nearcast.protocol.reports import BrokerFigures, SiteReport, TopicLag


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


def test_a_topic_that_nobody_processes_is_an_anomaly_with_what_waits() -> None:
    monitor = Monitor(lost_after=20.0)
    for site, lags in (
        ("west", [TopicLag("gps", 5, 12.0), TopicLag("new", 9, 3.0)]),
        ("east", [TopicLag("gps", 7, 14.0)]),
    ):
        monitor.take(SiteReport(site, 1, lags=lags), 0.0)
    assert monitor.lag("gps").waiting == 7
    assert monitor.lag("other") == TopicLag("other", 0, 0.0)
    (anomaly,) = unprocessed(monitor.lags())
    assert anomaly.sentence == "nobody processes topic gps: 7 wait, the oldest for 14 s"
    monitor.take(SiteReport("west", 1), 5.0)
    monitor.take(SiteReport("east", 1), 5.0)
    assert unprocessed(monitor.lags()) == []
