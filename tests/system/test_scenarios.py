"""Small versions of the scenarios, as `nearcast lab run` runs them: real processes, nothing injected."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from nearcast.lab.scenarios.game import AvatarParameters, game
from nearcast.lab.scenarios.plot import draw
from nearcast.lab.scenarios.report import judge, summary_table, write_tables
from nearcast.lab.scenarios.runner import run_scenario
from nearcast.lab.scenarios.swarms import SwarmParameters, swarms
from nearcast.lab.wan import missing_right
from nearcast.lab.workloads.game import generate_cities

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason)),
    pytest.mark.xdist_group("wan"),  # a start clears what killed emulators left, of any test
]


async def test_two_swarms_change_zone_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    scenario = swarms(SwarmParameters(seconds=18.0, swarms=2, drones=3, shortest_s=12.0, longest_s=16.0, seed=5))
    assert len(scenario.changes) == 2
    shares: list[float] = []
    judged = judge(await run_scenario(scenario, "nearcast", tmp_path / "logs", shares.append, warm_up=8.0))

    summary = judged.summary()
    assert (summary.lost, summary.repeated, judged.ledger.failed) == (0, 0, 0)
    assert set(judged.ledger.subscriber.tolist()) == set(range(6))
    # 2 swarms, 3 drones, 2 messages a second, 3 subscribers each.
    assert summary.deliveries == pytest.approx(2 * 3 * 2 * 18 * 3, rel=0.05)
    assert judged.ledger.latency_ms.min() >= 20.0
    assert summary.changes == 2
    assert shares == sorted(shares)
    assert shares[-1] > 0.9

    write_tables([judged], tmp_path / "out")
    draw([judged], tmp_path / "out" / "swarms.png")
    assert summary_table([judged]).row_count == 1
    rows = list(csv.DictReader((tmp_path / "out" / "deliveries.csv").read_text().splitlines()))
    assert sum(int(row["deliveries"]) for row in rows) == summary.deliveries
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "summary.csv", "deliveries.csv", "changes.csv", "moves.csv", "swarms.png",
    }  # fmt: skip


async def test_avatars_change_their_group_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    parameters = AvatarParameters(seconds=15.0, avatars=9, groups=3, cities=3, shortest_s=6.0, longest_s=12.0, seed=2)
    scenario = game(generate_cities(), parameters, "round trips are made up")
    assert len(scenario.changes) >= 9
    judged = judge(await run_scenario(scenario, "nearcast", tmp_path / "logs", warm_up=8.0))

    summary = judged.summary()
    assert (summary.lost, summary.repeated, judged.ledger.failed) == (0, 0, 0)
    assert summary.deliveries > 200
    assert len(set(judged.ledger.topic.tolist())) == 9
