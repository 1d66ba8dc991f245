"""Goals, in order of priority: each proposes moves, and may refuse the moves of those behind it, saying why.

`capacity` → `latency` → `workers` → `replicas` → `balance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.coordinator.goals.balance import Balance
from nearcast.coordinator.goals.capacity import SiteCapacity
from nearcast.coordinator.goals.goal import ClientProposal, Draft, Goal, Proposal, ReplicaProposal, TopicProposal
from nearcast.coordinator.goals.latency import TopicLatency
from nearcast.coordinator.goals.replicas import Replicas
from nearcast.coordinator.goals.workers import WorkerLatency

if TYPE_CHECKING:
    from nearcast.placement.colocation.latency_model import LatencyModel

__all__ = ["GOALS", "ClientProposal", "Draft", "Goal", "Proposal", "ReplicaProposal", "TopicProposal", "goals"]


def goals(latency_model: LatencyModel | None = None) -> tuple[Goal, ...]:
    """All goals in order; the workers' one predicts with a trained model when there is one."""
    return (SiteCapacity(), TopicLatency(), WorkerLatency(latency_model), Replicas(), Balance())


GOALS = goals()
