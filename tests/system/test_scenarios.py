"""Small versions of the scenarios, as `nearcast lab run` runs them: real processes, nothing injected."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nearcast.lab.scenarios.game import game
from nearcast.lab.scenarios.plot import draw
from nearcast.lab.scenarios.policies import starting_places
from nearcast.lab.scenarios.report import judge, summary_table, write_tables
from nearcast.lab.scenarios.runner import run_scenario
from nearcast.lab.scenarios.scenario import FaultKind, ScheduledFault
from nearcast.lab.scenarios.swarms import SwarmParameters, swarms
from nearcast.lab.wan import missing_right
from nearcast.lab.workloads.game import GameParameters, generate_cities

if TYPE_CHECKING:
    from pathlib import Path

    from nearcast.lab.scenarios.scenario import ScheduledChange

pytestmark = [
    pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason)),
    pytest.mark.xdist_group("wan"),  # a start clears what killed emulators left, of any test
]


def drone(change: ScheduledChange) -> str:
    """What the names of a swarm's drones begin with."""
    return f"drone{change.subject.removeprefix('swarm')}-"


async def test_two_swarms_change_zone_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    scenario = swarms(SwarmParameters(seconds=20.0, swarms=2, drones=3, shortest_s=14.0, longest_s=18.0, seed=3))
    assert len(scenario.changes) == 2
    shares: list[float] = []
    judged = judge(await run_scenario(scenario, "nearcast", tmp_path / "logs", shares.append, warm_up=8.0))

    summary = judged.summary()
    assert (summary.lost, summary.repeated, judged.ledger.failed) == (0, 0, 0)
    assert set(judged.ledger.subscriber.tolist()) == set(range(6))
    # 2 swarms, 3 drones, 2 messages a second, 3 subscribers each.
    assert summary.deliveries == pytest.approx(2 * 3 * 2 * 20 * 3, rel=0.05)
    assert judged.ledger.latency_ms.min() >= 20.0
    assert summary.changes == 2
    assert shares == sorted(shares)
    assert shares[-1] > 0.9
    # Every change of zone is answered: the topic runs where its swarm is, and the drones are at home there.
    moved_to = {(move.kind, move.subject): move.target.partition("/")[0] for move in judged.run.moves}
    for change in scenario.changes:
        (topic,) = change.topics
        assert moved_to["topic", topic] == change.target
        drones = [
            home for (kind, name), home in moved_to.items() if kind == "client" and name.startswith(drone(change))
        ]
        assert drones == [change.target] * 3

    write_tables([judged], tmp_path / "out")
    draw([judged], tmp_path / "out" / "swarms.png")
    assert summary_table([judged]).row_count == 1
    rows = list(csv.DictReader((tmp_path / "out" / "deliveries.csv").read_text().splitlines()))
    assert sum(int(row["deliveries"]) for row in rows) == summary.deliveries
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "summary.csv", "deliveries.csv", "changes.csv", "moves.csv", "swarms.png",
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "seconds"), [("kill coordinator", 26.0), ("cut off coordinator", 18.0)])
async def test_a_coordinator_killed_or_cut_off_during_a_change_delays_the_answer_and_breaks_nothing(
    tmp_path: Path, kind: FaultKind, seconds: float
) -> None:
    """Half a second after the change: the moves it calls for are about to begin. Another coordinator leads two leases
    later at most; a link that is back needs a report."""
    parameters = SwarmParameters(seconds=seconds, swarms=1, drones=3, shortest_s=20.0, longest_s=20.0, seed=4)
    whole = swarms(parameters)
    change = replace(whole.changes[0], at=2.0)
    scenario = replace(whole, changes=(change,))
    fault = ScheduledFault(change.at + 0.5, kind, change.target, 6.0)
    judged = judge(await run_scenario(scenario, "nearcast", tmp_path / "logs", warm_up=8.0, faults=[fault]))

    summary = judged.summary()
    assert (summary.lost, summary.repeated, judged.ledger.failed) == (0, 0, 0)
    assert [recovery.recovered for recovery in judged.recoveries] == [True]


@pytest.mark.parametrize("case", ["swings", "stands in the middle"])
async def test_a_swarm_between_two_zones_does_not_make_its_topic_flap(tmp_path: Path, case: str) -> None:
    """It swings every three seconds, or is as far from both zones, with a bound that neither keeps."""
    parameters = SwarmParameters(seconds=30.0, swarms=1, drones=3, zones=2, shortest_s=3.0, longest_s=3.0, seed=4)
    scenario = swarms(parameters)
    if case == "stands in the middle":
        ways = {"zone0": 17.5, "zone1": 17.5, "cloud": 50.0}
        scenario = replace(scenario, changes=(), nodes={"swarm0": ways}, bound_ms=34.0)
    judged = judge(await run_scenario(scenario, "nearcast", tmp_path / "logs", warm_up=8.0))

    summary = judged.summary()
    assert (summary.lost, summary.repeated, judged.ledger.failed) == (0, 0, 0)
    topic_moves = [move for move in judged.run.moves if move.kind == "topic" and move.at > judged.run.start]
    assert len(topic_moves) <= (5 if case == "swings" else 1)  # of ten changes


async def test_avatars_change_their_group_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    parameters = GameParameters(duration_s=15.0, avatars=9, groups=3, cities=3, shortest_s=6.0, longest_s=12.0, seed=2)
    scenario = game(generate_cities(), parameters, "round trips are made up")
    assert len(scenario.changes) >= 9
    judged = judge(await run_scenario(scenario, "nearcast", tmp_path / "logs", warm_up=8.0))

    summary = judged.summary()
    assert (summary.lost, summary.repeated, judged.ledger.failed) == (0, 0, 0)
    assert summary.deliveries > 200
    assert len(set(judged.ledger.topic.tolist())) == 9
    # Every change is answered: topics that had six seconds since run where their bound holds, if such a site exists.
    places = dict(starting_places("nearcast", scenario).topics)
    places |= {m.subject: m.target.partition("/")[0] for m in judged.run.moves if m.kind == "topic"}
    end = scenario.seconds
    late_changes = {topic for change in scenario.changes if change.at > end - 6.0 for topic in change.affected}
    far = {topic for topic, site in places.items() if scenario.latency(topic, site, end) > scenario.bound_ms}
    unavoidable = {topic for topic in far if scenario.latency(topic, scenario.best_site(topic, end), end) > 100.0}
    assert far - late_changes - unavoidable == set()
