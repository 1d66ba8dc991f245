"""The goals, in order of priority. Each proposes moves, and may refuse moves of later goals, with the reason.

`capacity` → `latency` → `workers` → `replicas` → `balance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.coordinator.goals.balance import BalanceGoal
from nearcast.coordinator.goals.capacity import SiteCapacityGoal
from nearcast.coordinator.goals.goal import ClientProposal, Draft, Goal, Proposal, ReplicaProposal, TopicProposal
from nearcast.coordinator.goals.latency import TopicLatencyGoal
from nearcast.coordinator.goals.replicas import ReplicaGoal
from nearcast.coordinator.goals.workers import WorkerLatencyGoal

if TYPE_CHECKING:
    from nearcast.placement.colocation.latency_model import LatencyModel

__all__ = ["GOALS", "ClientProposal", "Draft", "Goal", "Proposal", "ReplicaProposal", "TopicProposal", "make_goals"]


def make_goals(latency_model: LatencyModel | None = None) -> tuple[Goal, ...]:
    """All goals in order. latency_model: predicts the latency of topics that share a worker."""
    return (SiteCapacityGoal(), TopicLatencyGoal(), WorkerLatencyGoal(latency_model), ReplicaGoal(), BalanceGoal())


GOALS = make_goals()
