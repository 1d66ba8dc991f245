"""The dashboard of the console: the panels of Grafana's, rates between points, and a bounded number of series."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import pytest

from nearcast.protocol.data_cluster import DataClusterState, ProducerState
from nearcast.web.live import Live
from nearcast.web.pages.dashboard import chart_options, stat_values
from nearcast.web.panel_history import PANELS, DashboardReading, PanelHistory
from nearcast.web.snapshot import Snapshot

GRAFANA = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "nearcast.json").read_text())
COUNTS = {"late": 0, "deferred": 0, "dead_letters": 0, "dropped": 0}


def site(name: str = "tokyo", **figures: Any) -> dict[str, Any]:
    return {"site": name, "round_trips_ms": {}, **COUNTS, **figures}


def state(*sites: dict[str, Any], topics: Any = (), **status: Any) -> Snapshot:
    return Snapshot(1, "", {"leader": "c", "lost": [], **status}, list(sites), list(topics))


def cluster(rows: int, results: int) -> DataClusterState:
    return DataClusterState([ProducerState("reports", rows, 0, results, 1, 40, 0.25, "")], [], {})


def last(history: PanelHistory, title: str) -> dict[str, float | None]:
    return {name: points[-1] for name, points in history.series(title).items()}


def test_the_panels_are_those_of_grafana() -> None:
    rows: dict[str, list[tuple[str, str]]] = {}
    for panel in GRAFANA["panels"]:
        if panel["type"] == "row":
            shown = rows[panel["title"]] = []
        else:
            shown.append((panel["title"], panel["fieldConfig"]["defaults"]["unit"]))
    assert [title for title, _ in rows.pop("Now")] == list(stat_values(Live(cast("Any", None))))
    own = {row: [(one.title, one.unit) for one in panels] for row, panels in groupby(PANELS, lambda one: one.row)}
    assert own == rows


def test_what_is_counted_becomes_a_rate_and_a_restart_none() -> None:
    history = PanelHistory()
    before = state(site(late=100, dead_letters=5), passes=10, pass_seconds=1.0, moves_ended={"topic, done": 2})
    now = state(
        site(late=150, dead_letters=3), site("osaka", late=7), passes=14, pass_seconds=2.0,
        moves_ended={"topic, done": 3, "client, failed": 4}, anomalies={"late topic": 2},
    )  # fmt: skip
    history.add(DashboardReading(now, before, 10.0, cluster(70, 7), cluster(20, 2), 5.0))
    troubles = last(history, "Late, deferred, dead, dropped")
    assert troubles == {"late": 5.0, "deferred": 0, "dead letters": 0, "dropped": 0}
    assert last(history, "Moves per minute") == {"topic, done": 6.0, "client, failed": 24.0}
    assert last(history, "Time of a pass") == {"c": 0.25}
    assert last(history, "Anomalies") == {"late topic": 2}
    assert last(history, "Records and results") == {"reports in": 10.0, "reports out": 1.0}
    assert last(history, "Lag") == {"reports": 40}
    after = state(site(late=150), passes=3, pass_seconds=0.5)  # another coordinator leads, which counts from zero
    history.add(DashboardReading(after, now, 10.0))
    assert last(history, "Time of a pass") == {"c": None}
    assert last(history, "Late, deferred, dead, dropped")["late"] == 0


def test_latency_is_drawn_in_milliseconds_and_shares_in_percent() -> None:
    history = PanelHistory(lambda: 0.0)
    topics = [
        {"topic": "gps", "measured_p90_ms": 30.0, "bound_ms": 40, "waiting": 3, "oldest_s": 1.5},
        {"topic": "news", "measured_p90_ms": None, "bound_ms": None, "waiting": 0, "oldest_s": 0},
    ]
    far = site(round_trips_ms={"osaka": 12.0}, channels_p90_ms={"alerts": 90.0}, workers_busy={"worker-0": 0.5})
    near = site("osaka", channels_p90_ms={"alerts": 70.0})
    now = state(far, near, topics=topics)
    history.add(DashboardReading(now, now, 1.0))
    by_title = {panel.title: panel for panel in PANELS}

    def drawn(title: str) -> tuple[str, dict[str, Any]]:
        options = chart_options(history, by_title[title])
        return options["yAxis"]["name"], {line["name"]: line["data"] for line in options["series"]}

    assert drawn("Delivered latency, p90, by topic") == ("ms", {"gps": [30.0]})
    assert drawn("Latency as a share of the bound") == ("%", {"gps": [75.0]})
    assert drawn("Round trips between sites") == ("ms", {"tokyo to osaka": [12.0]})
    assert drawn("Channels, record to receipt, p90") == ("ms", {"alerts": [90.0]}), "of the slowest site"
    assert drawn("Worker utilisation") == ("%", {"tokyo worker-0": [50.0]})
    assert drawn("Unprocessed, by topic") == ("", {"gps": [3], "news": [0]})
    shown = chart_options(history, PANELS[0])
    assert shown["xAxis"]["data"] == ["00:00:00"]
    assert shown["aria"]["label"]["description"] == "Delivered latency, p90, by topic: gps 30 ms."
    waits = state(far, near, topics=[topics[0] | {"oldest_s": 90.0}])
    history.add(DashboardReading(waits, now, 1.0))
    assert drawn("Oldest unprocessed") == ("s", {"gps": [1.5, 90.0], "news": [0, None]})


def test_a_panel_keeps_the_ten_largest_series_of_each_moment() -> None:
    history = PanelHistory()
    for moment in range(1000):
        topics = [
            {
                "topic": f"t{n}",
                "measured_p90_ms": float((n * moment) % 997),
                "bound_ms": 50,
                "waiting": 0,
                "oldest_s": 0,
            }
            for n in range(200)
        ]
        now = state(topics=topics)
        history.add(DashboardReading(now, now, 5.0))
    for points in history.points.values():
        assert len(points) == 180
        assert max(map(len, points)) <= 10
    measured = sorted((topic["measured_p90_ms"] for topic in topics), reverse=True)[:10]
    shown = history.points["Delivered latency, p90, by topic"][-1]
    assert sorted(shown.values(), reverse=True) == pytest.approx([value / 1000 for value in measured])


def test_dead_letters_are_those_of_an_hour() -> None:
    now = 0.0
    history = PanelHistory(lambda: now)

    def given_up(before: int, after: int) -> None:
        history.add(DashboardReading(state(site(dead_letters=after)), state(site(dead_letters=before)), 5.0))

    given_up(0, 3)
    now = 1800.0
    given_up(3, 5)
    assert history.dead_letters() == 5
    now = 3660.0
    given_up(5, 5)
    assert history.dead_letters() == 2
    now = 100_000.0
    given_up(5, 5)
    assert history.dead_letters() == 0


def test_numbers_of_now() -> None:
    live = Live(cast("Any", None))
    assert stat_values(live)["Leading coordinators"] == 0
    sites = [site(store=True, store_up=False), site("osaka", store=False, store_up=False)]
    topics = [{"topic": "a", "late": True, "waiting": 4}, {"topic": "b", "waiting": 1}]
    live.now = state(*sites, topics=topics, lost=["osaka"])
    assert list(stat_values(live).values()) == [1, 1, 1, 5, 0, 1]
