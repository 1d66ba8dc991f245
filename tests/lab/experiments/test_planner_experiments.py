"""The experiments of papers 001, 002 and 004: small tasks give sound rows, and the parts that are ours are right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearcast.lab.experiments import (
    balance_over_time,
    broker_selection,
    colocation_model,
    colocation_plans,
    coordinates_and_reports,
)
from nearcast.lab.experiments.experiment import Task
from nearcast.lab.experiments.results import Results
from nearcast.placement import balance

if TYPE_CHECKING:
    from nearcast.lab.experiments.experiment import Claim, Experiment, Point


def test_rates_rise_and_fall() -> None:
    given = balance_over_time.BalanceScenario(300, seed=1)
    base = given.rates[0]
    share = (given.rates[10:] > 1.5 * base).mean(axis=1)
    assert 0.3 < share.min() <= share.max() < 0.95
    assert set(np.unique((given.rates / base).round(6))) == {1.0, 2.0}
    assert np.bincount(given.nearest).max() > 0.2 * 300


def test_subscriptions_are_made_in_the_first_minutes() -> None:
    given = balance_over_time.BalanceScenario(200, seed=2)
    sizes = [given.at(minute).subscriptions.nnz for minute in range(12)]
    assert sizes[0] < sizes[4] < sizes[7] == sizes[11]


def test_moves_add_up_minute_by_minute() -> None:
    given, moves = balance_over_time.BalanceScenario(200, seed=3), 0
    at = given.nearest
    for plan, so_far in balance_over_time.simulate(given, lambda problem, now: balance.ldm(problem, now, alpha=0.15)):
        moves += int((plan.assignment != at).sum())
        at = plan.assignment
        assert so_far == moves


def test_policies_are_judged_by_every_pair() -> None:
    """Two topics between two sites 30 ms apart; literal pairs."""
    topic, produces = np.array([0, 1, 0, 0, 1]), np.array([1, 1, 0, 0, 0])
    node = np.array([0, 1, 0, 1, 1])
    known = np.array([[0.0, 30.0], [30.0, 0.0]])
    believed = np.array([[0.0], [30.0]]), np.zeros(2)
    rows = {row["method"]: row for row in broker_selection.judged(topic, produces, node, known, believed, 5.0, 35.0)}
    # Topic 0 has a pair at site 0 (10 ms) and one across (40 ms) wherever it is; topic 1 is at home at site 1.
    for method in ("centroid", "all pairs", "refined", "optimum"):
        assert rows[method]["late_pairs"] == pytest.approx(1 / 3)
        assert rows[method]["worst_ms"] == 40.0


@pytest.mark.parametrize("method", ["centroid", "all pairs", "refined", "optimum"])
def test_no_swarm_is_late_with_a_policy_that_knows_latencies(method: str) -> None:
    rows = {row["method"]: row for row in broker_selection.measure_swarms(Task({"zones": 4.0}, 1, quick=True))}
    assert rows[method]["late_pairs"] == 0
    assert rows["hash"]["late_pairs"] > 0.3


def test_reports_do_not_grow_with_clients() -> None:
    sizes = {}
    for clients in (4.0, 64.0):
        aggregated, everything = coordinates_and_reports.measure_reports(Task({"topics": 3.0, "clients": clients}, 1))
        sizes[clients] = (aggregated["bytes_per_topic"], everything["bytes_per_topic"])
    assert sizes[4.0][0] == sizes[64.0][0]
    assert sizes[64.0][1] > 10 * sizes[4.0][1]


def test_coordinates_tell_a_star_well() -> None:
    (row,) = coordinates_and_reports.measure_error(Task({"nodes": 8.0, "rtt_ms": 40.0}, 1))
    assert float(row["error_share"]) < 0.06


def test_a_saturated_worker_is_slow() -> None:
    rows = {
        load: {
            row["method"]: float(row["p90_ms"]) for row in colocation_model.measure_sensitivity(Task({"load": load}, 1))
        }
        for load in (0.2, 1.05)
    }
    assert rows[1.05]["20 ms"] > 20 * rows[0.2]["20 ms"]
    assert rows[0.2]["5 others"] > rows[0.2]["0 others"]


def judged(experiment: Experiment, points: list[Point], seeds: int = 2) -> list[Claim]:
    rows = [
        {**point, "seed": float(seed), **row}
        for point in points
        for seed in range(1, seeds + 1)
        for row in experiment.measure(Task(point, seed, quick=True))
    ]
    return list(experiment.claims(Results(rows, [*points[0], "seed"], {})))


def test_claims_of_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance_over_time, "scenario", lambda task: balance_over_time.BalanceScenario(60, task.seed))
    over_time, thresholds = balance_over_time.EXPERIMENTS
    mended, *_ = judged(over_time, [{"alpha": 0.15}])
    assert mended.verdict == "holds"
    assert len(judged(thresholds, [{"alpha": alpha, "beta": 300.0} for alpha in (0.05, 0.3)])) == 2


def test_claims_of_colocation(monkeypatch: pytest.MonkeyPatch) -> None:
    model = colocation_plans.learned(240)
    monkeypatch.setattr(colocation_plans, "learned", lambda runs: model)
    by_topics, by_seed_size = colocation_plans.EXPERIMENTS
    assert len(judged(by_topics, [{"n": 6.0}, {"n": 9.0}])) == 4
    assert len(judged(by_seed_size, [{"k'": 1.0}, {"k'": 6.0}], seeds=1)) == 4
    saturation, *_ = judged(colocation_model.EXPERIMENTS[0], [{"load": load} for load in (0.2, 0.8, 1.05)], seeds=6)
    assert saturation.verdict == "holds"


def test_claims_of_broker_selection() -> None:
    _, swarms = broker_selection.EXPERIMENTS
    assert [claim.verdict for claim in judged(swarms, [{"zones": 2.0}, {"zones": 8.0}])] == ["holds"] * 4
