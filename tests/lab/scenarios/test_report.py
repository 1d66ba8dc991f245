"""Tables, files and the plot of made-up runs."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearcast.lab.scenarios.clients import ClientResults
from nearcast.lab.scenarios.observed_moves import ObservedMove
from nearcast.lab.scenarios.plot import draw, topic_lines
from nearcast.lab.scenarios.report import JudgedRun, judge, summary_table, write_tables
from nearcast.lab.scenarios.runner import ScenarioRun
from nearcast.lab.scenarios.swarms import SwarmParameters, swarms

if TYPE_CHECKING:
    from pathlib import Path

START = 1_000_000.0


@pytest.fixture
def judged() -> JudgedRun:
    """A swarm of two drones; each publishes every 100 ms. For 3 s after the only change it takes 50 ms, else 20."""
    scenario = swarms(SwarmParameters(seconds=30.0, swarms=1, drones=2, seed=2, shortest_s=20.0))
    (change,) = scenario.changes
    results = ClientResults(subscribed=[(drone, "swarm.0", 0, round(2 * START * 1e6)) for drone in (0, 1)])
    for count in range(300):
        at = count / 10
        due = round((START + at) * 1e6)
        latency_us = 50_000 if change.at <= at < change.at + 3.0 else 20_000
        for publisher in (0, 1):
            results.published.append((publisher, count, due, due))
            results.received += [(drone, publisher, count, due + latency_us) for drone in (0, 1)]
    results.received.remove((1, 0, 7, round((START + 0.7) * 1e6) + 20_000))
    moves = [
        ObservedMove(START - 3.0, "topic", "swarm.0", "zone0", "zone1", "warm-up"),
        ObservedMove(START + change.at + 3.0, "topic", "swarm.0", "zone1", "zone2", "late"),
        ObservedMove(START + change.at + 2.9, "client", "drone0-0", "zone1", "zone2", "late"),
    ]
    return judge(ScenarioRun(scenario, "nearcast", START, [results], moves))


def test_the_summary(judged: JudgedRun) -> None:
    summary = judged.summary()
    assert summary.deliveries == 1200
    assert summary.above_bound == pytest.approx((30 * 4 + 1) / 1200)
    assert (summary.lost, summary.repeated) == (1, 0)
    assert (summary.changes, summary.not_recovered) == (1, 0)
    assert summary.above_max_s == summary.above_p50_s == pytest.approx(2.9, abs=0.1)
    assert (summary.topic_moves, summary.client_moves) == (1, 1)
    assert summary_table([judged]).row_count == 1


def test_files_hold_every_delivery_change_and_move(judged: JudgedRun, tmp_path: Path) -> None:
    write_tables([judged, judged], tmp_path / "out")

    def rows(name: str) -> list[dict[str, str]]:
        return list(csv.DictReader((tmp_path / "out" / name).read_text().splitlines()))

    deliveries = rows("deliveries.csv")
    assert sum(int(row["deliveries"]) for row in deliveries) == 2 * 1200
    assert sum(int(row["above_bound"]) for row in deliveries) == 2 * 121
    assert sum(int(row["lost"]) for row in deliveries) == 2
    assert {row["p50_ms"] for row in deliveries} == {"20.0", "50.0"}
    assert [row["kind"] for row in rows("moves.csv")] == 2 * ["topic", "topic", "client"]
    assert rows("moves.csv")[0]["time_s"] == "-3.0"
    assert {row["recovered"] for row in rows("changes.csv")} == {"True"}
    assert [row["policy"] for row in rows("summary.csv")] == ["nearcast", "nearcast"]


def test_the_plot_has_a_line_per_topic(judged: JudgedRun, tmp_path: Path) -> None:
    ((topic, p90_ms),) = topic_lines(judged).items()
    assert topic == "swarm.0"
    assert len(p90_ms) == 60
    assert not np.isnan(p90_ms).any()
    assert set(p90_ms.round(3)) <= {20.0, 50.0}
    draw([judged, judged], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
