"""Goals, in order of priority: each proposes moves, and may refuse the moves of those behind it, saying why.

`capacity` → `latency` → `workers` → `replicas` → `balance`.
"""

from __future__ import annotations

from nearcast.coordinator.goals.balance import Balance
from nearcast.coordinator.goals.capacity import SiteCapacity
from nearcast.coordinator.goals.goal import ClientProposal, Draft, Goal, Proposal, ReplicaProposal, TopicProposal
from nearcast.coordinator.goals.latency import TopicLatency
from nearcast.coordinator.goals.replicas import Replicas
from nearcast.coordinator.goals.workers import WorkerLatency

__all__ = ["GOALS", "ClientProposal", "Draft", "Goal", "Proposal", "ReplicaProposal", "TopicProposal"]

GOALS: tuple[Goal, ...] = (SiteCapacity(), TopicLatency(), WorkerLatency(), Replicas(), Balance())
