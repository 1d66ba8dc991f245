"""A plan put to the test: its workers are simulated, and what would be late is counted. The margin is chosen so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.colocation.problem import InfeasibleTopicError, feasibility
from nearcast.placement.colocation.worker_simulation import messages_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.placement.arrays import Floats
    from nearcast.placement.colocation.latency_model import LatencyModel
    from nearcast.placement.colocation.problem import ColocationPlan, ColocationTopics, Feasibility
    from nearcast.placement.colocation.worker_simulation import SimulatedWorker

__all__ = ["MARGINS", "CheckedPlan", "PlanCheck", "check_plan", "with_checked_margin"]

MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
TOLERATED = 0.002  # share of topics that may be late in a run before a larger margin is tried
RUNS = 3


@dataclass(frozen=True)
class PlanCheck:
    """What simulated runs of all workers of a plan measured."""

    p90_ms: Floats  # runs × topics
    late_topics: float  # share of topics whose p90 is above the bound, mean over the runs
    late_messages: float  # share of messages above their topic's bound


@dataclass(frozen=True)
class CheckedPlan:
    margin: float
    plan: ColocationPlan
    check: PlanCheck


def check_plan(
    plan: ColocationPlan, topics: ColocationTopics, worker: SimulatedWorker, seed: int = 0, runs: int = RUNS
) -> PlanCheck:
    """Simulate every worker of the plan, several times."""
    generator = np.random.default_rng(seed)
    p90 = np.full((runs, len(topics)), np.nan)
    late = sent = 0
    for number in np.unique(plan.worker):
        members = np.flatnonzero(plan.worker == number)
        for run in range(runs):
            found = messages_ms(topics.rate[members], topics.processing_ms[members], worker, generator)
            for topic, latency in zip(members.tolist(), found, strict=True):
                if len(latency):  # without a message nothing is late
                    p90[run, topic] = np.percentile(latency, 90)
                    late += int(np.count_nonzero(latency > topics.bound_ms[topic]))
                    sent += len(latency)
    above = np.nan_to_num(p90, nan=0.0) > topics.bound_ms
    return PlanCheck(p90, float(above.mean()) if above.size else 0.0, late / max(sent, 1))


def with_checked_margin(
    model: LatencyModel,
    topics: ColocationTopics,
    planner: Callable[[Feasibility], ColocationPlan],
    worker: SimulatedWorker,
    seed: int = 0,
) -> CheckedPlan:
    """The plan with the smallest margin with which hardly a topic is late; if there is none, the one with fewest late.

    Refuses topics that do not meet their bound alone even without a margin.
    """
    # A share of 0.2 % shows only among 500 topics: few of them are simulated more often.
    runs = max(RUNS, round(1 / (TOLERATED * max(len(topics), 1))))
    best: CheckedPlan | None = None
    for margin in MARGINS:
        try:
            plan = planner(feasibility(model, topics, margin))
        except InfeasibleTopicError:
            if best is None:
                raise
            break  # a larger margin refuses it as well
        found = CheckedPlan(margin, plan, check_plan(plan, topics, worker, seed, runs))
        if best is None or found.check.late_topics < best.check.late_topics:
            best = found
        if found.check.late_topics <= TOLERATED:
            break
    assert best is not None
    return best
