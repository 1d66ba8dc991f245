"""The interface of a goal, the moves it proposes, and the draft of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model
    from nearcast.domain.worker_id import WorkerId

__all__ = ["ClientProposal", "Draft", "Goal", "Proposal", "ReplicaProposal", "TopicProposal"]


@dataclass(frozen=True)
class TopicProposal:
    """Run a topic in these workers. sites: their rows. expected_ms: the topic's latency there."""

    topic: int
    members: tuple[WorkerId, ...]
    sites: tuple[int, ...]
    expected_ms: float
    reason: str
    hard: bool = True  # the cool-down does not apply


@dataclass(frozen=True)
class ClientProposal:
    """Move a client to another home."""

    client: int
    home: int
    reason: str
    hard: bool = False


@dataclass(frozen=True)
class ReplicaProposal:
    """Store a topic at these sites."""

    topic: int
    replicas: tuple[str, ...]
    reason: str
    hard: bool = False


Proposal = TopicProposal | ClientProposal | ReplicaProposal


class Draft:
    """The model as the moves accepted so far would change it. The only mutable part of planning."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.managing = model.topics.managing.copy()
        self.latency = model.topics.latency.copy()
        self.rate_out = model.sites.rate_out.copy()
        self.utilisation = model.sites.utilisation.copy()
        self.home = model.clients.home.copy()
        self.client_load = model.client_load()

    def apply(self, proposal: Proposal) -> None:
        """Apply the estimated effect of a move."""
        if isinstance(proposal, TopicProposal):
            row, rate = proposal.topic, self.model.topics.rate[proposal.topic]
            before = self.managing[row].nonzero()[0].tolist()
            for site in before:
                self._add_rate(site, -rate / len(before))
            for site in proposal.sites:
                self._add_rate(site, rate / len(proposal.sites))
            self.managing[row] = False
            self.managing[row, list(proposal.sites)] = True
            self.latency[row] = proposal.expected_ms
        elif isinstance(proposal, ClientProposal):
            load = self.client_load[proposal.client]
            if self.home[proposal.client] >= 0:
                self._add_rate(int(self.home[proposal.client]), -load)
            self._add_rate(proposal.home, load)
            self.home[proposal.client] = proposal.home

    def _add_rate(self, site: int, rate: float) -> None:
        """Change a site's rate; its utilisation is assumed to be proportional to it."""
        before = self.rate_out[site]
        self.rate_out[site] = max(before + rate, 0.0)
        if before > 0:
            self.utilisation[site] *= self.rate_out[site] / before

    def now(self) -> Model:
        """The model after the moves so far."""
        model = self.model
        return replace(
            model,
            topics=replace(model.topics, managing=self.managing.copy(), latency=self.latency.copy()),
            sites=replace(model.sites, rate_out=self.rate_out.copy(), utilisation=self.utilisation.copy()),
            clients=replace(model.clients, home=self.home.copy()),
        )


class Goal(Protocol):
    """One objective of planning. `name` is shown to users."""

    name: str

    def propose(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """Moves that serve this goal, the most urgent first."""

    def objection(self, draft: Draft, proposal: Proposal, settings: CoordinatorSettings) -> str:
        """Why a move of a later goal is refused; empty when it is not."""
        return ""
