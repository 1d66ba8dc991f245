"""A plan: the moves that the goals agreed on, those refused and why, and figures before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.coordinator.goals import GOALS, ClientProposal, Draft, Goal, Proposal, TopicProposal
from nearcast.coordinator.goals.balance import site_loads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearcast.coordinator.model import Model
    from nearcast.coordinator.settings import Settings

__all__ = ["Accepted", "Plan", "Refused", "figures", "make_plan", "subject_of"]


@dataclass(frozen=True)
class Accepted:
    """A move, and the goal it serves."""

    goal: str
    proposal: Proposal


@dataclass(frozen=True)
class Refused:
    """A move that another goal refused, or that came too soon after the last one."""

    goal: str
    proposal: Proposal
    by: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What to do, what not, and what it changes."""

    model: Model
    accepted: tuple[Accepted, ...]
    refused: tuple[Refused, ...]
    before: dict[str, float]
    after: dict[str, float] = field(default_factory=dict)

    def sentences(self) -> list[dict[str, Any]]:
        """The moves as a newcomer reads them."""
        return [
            {"move": describe(self.model, one.proposal), "goal": one.goal, "reason": one.proposal.reason}
            for one in self.accepted
        ]

    def refusals(self) -> list[dict[str, Any]]:
        """The moves not made."""
        return [
            {"move": describe(self.model, one.proposal), "goal": one.goal, "refused_by": one.by, "reason": one.reason}
            for one in self.refused
        ]


def make_plan(
    model: Model, settings: Settings, moved_at: Mapping[str, float], now: float, goals: tuple[Goal, ...] = GOALS
) -> Plan:
    """Ask the goals in order; each sees the model as the accepted moves so far would leave it.

    moved_at: when each topic and client was last moved. Soft goals leave it alone for the cool-down.
    """
    draft = Draft(model)
    accepted: list[Accepted] = []
    refused: list[Refused] = []
    taken: set[str] = set()
    for position, goal in enumerate(goals):
        for proposal in goal.propose(draft.now(), settings):
            subject = subject_of(model, proposal)
            if subject in taken:  # an earlier goal has moved it already
                continue
            since = now - moved_at.get(subject, float("-inf"))
            if not proposal.hard and since < settings.cool_down:
                why = f"it moved {since:.0f} s ago and rests for {settings.cool_down:g} s"
                refused.append(Refused(goal.name, proposal, "fewest moves", why))
                continue
            objections = ((other.name, other.objection(draft, proposal, settings)) for other in goals[:position])
            objection = next(((name, why) for name, why in objections if why), None)
            if objection is not None:
                refused.append(Refused(goal.name, proposal, *objection))
                continue
            draft.apply(proposal)
            taken.add(subject)
            accepted.append(Accepted(goal.name, proposal))
    after = figures(draft.now()) if accepted else figures(model)
    return Plan(model, tuple(accepted), tuple(refused), figures(model), after)


def subject_of(model: Model, proposal: Proposal) -> str:
    """What a move is about."""
    if isinstance(proposal, ClientProposal):
        return f"client {model.clients.names[proposal.client]}"
    return f"topic {model.topics.names[proposal.topic]}"


def describe(model: Model, proposal: Proposal) -> str:
    """A move in words."""
    if isinstance(proposal, ClientProposal):
        client, sites = model.clients, model.sites.names
        before = client.home[proposal.client]
        here = sites[before] if before >= 0 else "nowhere"
        return f"client {client.names[proposal.client]}: {here} -> {sites[proposal.home]}"
    record = model.topics.records[proposal.topic]
    if isinstance(proposal, TopicProposal):
        here, there = ", ".join(record.members) or "nowhere", ", ".join(proposal.members)
        return f"topic {record.spec.name}: {here} -> {there}"
    return f"replicas of {record.spec.name}: {', '.join(record.spec.replicas)} -> {', '.join(proposal.replicas)}"


def figures(model: Model) -> dict[str, float]:
    """What a plan is judged by."""
    topics, sites = model.topics, model.sites
    late = topics.latency > topics.bound
    load = site_loads(model)[sites.alive]
    mean = float(load.mean()) if len(load) else 0.0
    finite = topics.latency[np.isfinite(topics.latency)]
    return {
        "late_topics": int(late.sum()),
        "worst_latency_ms": round(float(finite.max()), 1) if len(finite) else 0.0,
        "overloaded_sites": int(
            ((sites.utilisation.max(axis=1, initial=0) > 0.85) | (sites.rate_out > sites.rate_limit)).sum()
        ),
        "cov": round(float(load.std()) / mean, 3) if mean > 0 else 0.0,
        "largest_site_load": round(float(load.max()), 1) if len(load) else 0.0,
    }
