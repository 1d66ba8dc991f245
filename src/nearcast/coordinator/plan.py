"""A plan: the moves that the goals agreed on, those refused and why, and figures before and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.coordinator.goals import GOALS, ClientProposal, Draft, Goal, Proposal, ReplicaProposal, TopicProposal
from nearcast.coordinator.goals.latency import why_left
from nearcast.coordinator.model.problems import site_loads
from nearcast.placement.balance import cov

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.detectors import Anomaly
    from nearcast.coordinator.model import Model

_LISTED = 100  # late topics that are left; the goals see all

__all__ = [
    "AcceptedMove",
    "Plan",
    "RefusedMove",
    "changed_topics",
    "figures",
    "latency_figures",
    "make_plan",
    "subject_of",
]


@dataclass(frozen=True)
class AcceptedMove:
    """A move and the goal that proposed it."""

    goal: str
    proposal: Proposal


@dataclass(frozen=True)
class RefusedMove:
    """A move that an earlier goal refused, or that comes too soon after the last one."""

    goal: str
    proposal: Proposal
    by: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Accepted and refused moves, the figures before and after, and why late topics stay where they are (`left`)."""

    model: Model
    accepted: tuple[AcceptedMove, ...]
    refused: tuple[RefusedMove, ...]
    before: dict[str, float]
    after: dict[str, float] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def to_dict(self, anomalies: Iterable[Anomaly]) -> dict[str, Any]:
        """The plan and what it was made for, as `nearcast plan show` gets it."""
        return {
            "found": [{"kind": anomaly.kind, "sentence": anomaly.sentence} for anomaly in anomalies],
            "moves": [
                self._described(move.proposal) | {"goal": move.goal, "reason": move.proposal.reason}
                for move in self.accepted
            ],
            "refused": [
                self._described(move.proposal) | {"goal": move.goal, "refused_by": move.by, "reason": move.reason}
                for move in self.refused
            ],
            "left": [
                {
                    "topic": name,
                    "latency": latency_sentence(self.model, self.model.topics.names.index(name)),
                    "reason": why,
                }
                for name, why in self.left.items()
            ],
            "before": self.before,
            "after": self.after,
        }

    def _described(self, proposal: Proposal) -> dict[str, Any]:
        model = self.model
        before, after = sites_of(model, proposal)
        return {
            "move": describe(model, proposal),
            "subject": subject_of(model, proposal),
            "change": change_of(model, proposal),
            "from": before,
            "to": after,
        }


def make_plan(
    model: Model,
    settings: CoordinatorSettings,
    moved_at: Mapping[str, float],
    now: float,
    goals: tuple[Goal, ...] = GOALS,
    copying: Collection[str] = (),
) -> Plan:
    """Ask the goals in order; each sees the model as the moves accepted so far would change it.

    moved_at: when each topic and client was last moved; soft goals do not move it again during the cool-down.
    copying: topics whose replicas are being moved.
    """
    draft = Draft(model)
    accepted: list[AcceptedMove] = []
    refused: list[RefusedMove] = []
    taken: set[str] = set()
    for position, goal in enumerate(goals):
        for proposal in goal.propose(draft.now(), settings):
            subject = subject_of(model, proposal)
            if subject in taken:  # an earlier goal moves it
                continue
            if isinstance(proposal, ReplicaProposal) and model.topics.names[proposal.topic] in copying:
                refused.append(RefusedMove(goal.name, proposal, "fewest moves", "its replicas are still being moved"))
                continue
            since = now - moved_at.get(subject, float("-inf"))
            if not proposal.hard and since < settings.cool_down:
                why = f"it moved {since:.0f} s ago, and the cool-down is {settings.cool_down:g} s"
                refused.append(RefusedMove(goal.name, proposal, "fewest moves", why))
                continue
            objections = ((other.name, other.objection(draft, proposal, settings)) for other in goals[:position])
            objection = next(((name, why) for name, why in objections if why), None)
            if objection is not None:
                refused.append(RefusedMove(goal.name, proposal, *objection))
                continue
            draft.apply(proposal)
            taken.add(subject)
            accepted.append(AcceptedMove(goal.name, proposal))
    before = figures(model, settings)
    after = figures(draft.now(), settings) if accepted else before
    return Plan(model, tuple(accepted), tuple(refused), before, after, _left(model, settings, accepted, refused))


def _left(
    model: Model, settings: CoordinatorSettings, accepted: Sequence[AcceptedMove], refused: Sequence[RefusedMove]
) -> dict[str, str]:
    """Late topics that no move of the plan helps, and why."""
    topics, helped = model.topics, changed_topics(model, accepted)
    objections = {m.proposal.topic: m.reason for m in refused if isinstance(m.proposal, TopicProposal)}
    late = np.flatnonzero(topics.latency > topics.bound)[:_LISTED].tolist()
    return {
        topics.names[row]: objections.get(row) or why_left(model, row, settings) for row in late if row not in helped
    }


def changed_topics(model: Model, accepted: Iterable[AcceptedMove]) -> set[int]:
    """The topics whose latency moves change: those that move, and those of clients that move."""
    proposals = [move.proposal for move in accepted]
    moving = [proposal.client for proposal in proposals if isinstance(proposal, ClientProposal)]
    of_clients = model.clients.pair_topic[np.isin(model.clients.pair_client, moving)]
    return {*of_clients.tolist(), *(proposal.topic for proposal in proposals if isinstance(proposal, TopicProposal))}


def subject_of(model: Model, proposal: Proposal) -> str:
    """The topic or client that a move changes."""
    if isinstance(proposal, ClientProposal):
        return f"client {model.clients.names[proposal.client]}"
    return f"topic {model.topics.names[proposal.topic]}"


def sites_of(model: Model, proposal: Proposal) -> tuple[list[str], list[str]]:
    """The sites at which the subject of a move is before and after it."""
    if isinstance(proposal, ClientProposal):
        before, sites = model.clients.home[proposal.client], model.sites.names
        return ([sites[before]] if before >= 0 else []), [sites[proposal.home]]
    record = model.topics.records[proposal.topic]
    if isinstance(proposal, TopicProposal):
        return [name.site for name in record.members], [name.site for name in proposal.members]
    return list(record.spec.replicas), list(proposal.replicas)


def describe(model: Model, proposal: Proposal) -> str:
    """A move as `subject: before -> after`."""
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
    """The change as the predicate of a sentence about the subject of the move."""
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


def latency_figures(model: Model, row: int, settings: CoordinatorSettings) -> dict[str, Any]:
    """A topic's latency and its parts, one way, ms: what `topic info` shows."""
    topics, live = model.topics, np.flatnonzero(model.sites.alive)
    best = int(live[topics.expected[row, live].argmin()]) if len(live) else -1
    shown = {
        "bound_ms": topics.bound[row],
        "measured_p90_ms": topics.measured[row],
        "estimate_ms": topics.estimate[row],
        "way_in_ms": topics.way_in[row],
        "in_worker_p90_ms": topics.in_worker[row],
        "way_out_ms": topics.way_out[row],
        "best_ms": topics.expected[row, best] if best >= 0 else np.nan,
    }
    late = bool(topics.latency[row] > topics.bound[row])
    return {
        "latency": latency_sentence(model, row),
        **{name: round(float(value), 1) if np.isfinite(value) else None for name, value in shown.items()},
        "samples": int(topics.samples[row]),
        "best_site": model.sites.names[best] if best >= 0 else "",
        "late": late,
        "why_left": why_left(model, row, settings) if late else "",
    }


def latency_sentence(model: Model, row: int) -> str:
    """A topic's latency and its parts in one line."""
    topics, live = model.topics, np.flatnonzero(model.sites.alive)
    where = ", ".join(map(str, topics.records[row].members)) or "no site"
    measured = (
        f"measured p90 {topics.measured[row]:.0f} ms ({topics.samples[row]:.0f} samples)"
        if np.isfinite(topics.measured[row])
        else "not measured yet"
    )
    parts = f"{topics.way_in[row]:.0f} in + {topics.in_worker[row]:.0f} in the worker + {topics.way_out[row]:.0f} out"
    bound = f"bound {topics.bound[row]:.0f} ms" if np.isfinite(topics.bound[row]) else "no bound"
    best = ""
    if len(live):
        site = int(live[topics.expected[row, live].argmin()])
        best = f"; best is {model.sites.names[site]} with {topics.expected[row, site]:.0f} ms"
    return f"at {where}: {bound}, {measured}, estimate {topics.estimate[row]:.0f} ms ({parts}){best}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) or "no site"


def figures(model: Model, settings: CoordinatorSettings) -> dict[str, float]:
    """The figures that a plan should improve."""
    topics, sites = model.topics, model.sites
    late = topics.latency > topics.bound
    overloaded = (sites.utilisation.max(axis=1, initial=0) > settings.watermark) | (sites.rate_out > sites.rate_limit)
    load = site_loads(model)[sites.alive]
    finite = topics.latency[np.isfinite(topics.latency)]
    return {
        "late_topics": int(late.sum()),
        "worst_latency_ms": round(float(finite.max()), 1) if len(finite) else 0.0,
        "overloaded_sites": int(overloaded.sum()),
        "cov": round(cov(load), 3) if len(load) else 0.0,
        "largest_site_load": round(float(load.max()), 1) if len(load) else 0.0,
    }
