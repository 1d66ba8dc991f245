"""A plan: the moves that the goals agreed on, those refused and why, and figures before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.coordinator.goals import GOALS, ClientProposal, Draft, Goal, Proposal, ReplicaProposal, TopicProposal
from nearcast.coordinator.goals.balance import site_loads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model

__all__ = ["Accepted", "Plan", "Refused", "change_of", "figures", "make_plan", "subject_of"]


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
        """The moves as a newcomer reads them: the subject is to do the change for the reason."""
        return [self._told(one.proposal) | {"goal": one.goal, "reason": one.proposal.reason} for one in self.accepted]

    def refusals(self) -> list[dict[str, Any]]:
        """The moves not made, and why not."""
        return [
            self._told(one.proposal) | {"goal": one.goal, "refused_by": one.by, "reason": one.reason}
            for one in self.refused
        ]

    def _told(self, proposal: Proposal) -> dict[str, str]:
        model = self.model
        return {
            "move": describe(model, proposal),
            "subject": subject_of(model, proposal),
            "change": change_of(model, proposal),
        }


def make_plan(
    model: Model,
    settings: CoordinatorSettings,
    moved_at: Mapping[str, float],
    now: float,
    goals: tuple[Goal, ...] = GOALS,
    copied: Collection[str] = (),
) -> Plan:
    """Ask the goals in order; each sees the model as the accepted moves so far would leave it.

    moved_at: when each topic and client was last moved. Soft goals leave it alone for the cool-down. copied: topics
    whose replicas are on the move.
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
            if isinstance(proposal, ReplicaProposal) and model.topics.names[proposal.topic] in copied:
                refused.append(Refused(goal.name, proposal, "fewest moves", "its past is still being copied"))
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
    before = figures(model, settings)
    after = figures(draft.now(), settings) if accepted else before
    return Plan(model, tuple(accepted), tuple(refused), before, after)


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
        here, there = ", ".join(map(str, record.members)) or "nowhere", ", ".join(map(str, proposal.members))
        return f"topic {record.spec.name}: {here} -> {there}"
    return f"replicas of {record.spec.name}: {', '.join(record.spec.replicas)} -> {', '.join(proposal.replicas)}"


def change_of(model: Model, proposal: Proposal) -> str:
    """What the subject of a move is to do, as the second half of a sentence."""
    sites = model.sites.names
    if isinstance(proposal, ClientProposal):
        before = model.clients.home[proposal.client]
        here = f"from {sites[before]} " if before >= 0 else ""
        return f"move {here}to {sites[proposal.home]}"
    record = model.topics.records[proposal.topic]
    if not isinstance(proposal, TopicProposal):
        return f"be kept at {_listed(proposal.replicas)} instead of {_listed(record.spec.replicas)}"
    before_sites, after_sites = ([name.site for name in names] for names in (record.members, proposal.members))
    if before_sites == after_sites:
        moved = [pair for pair in zip(record.members, proposal.members, strict=True) if pair[0] != pair[1]]
        return " and ".join(f"move from {old} to {new.worker} of the same site" for old, new in moved)
    if len(before_sites) == len(after_sites) == 1:
        return f"move from {before_sites[0]} to {after_sites[0]}"
    return f"run at {_listed(after_sites)} instead of {_listed(before_sites)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) or "no site"


def figures(model: Model, settings: CoordinatorSettings) -> dict[str, float]:
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
            (
                (sites.utilisation.max(axis=1, initial=0) > settings.watermark) | (sites.rate_out > sites.rate_limit)
            ).sum()
        ),
        "cov": round(float(load.std()) / mean, 3) if mean > 0 else 0.0,
        "largest_site_load": round(float(load.max()), 1) if len(load) else 0.0,
    }
