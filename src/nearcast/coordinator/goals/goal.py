"""What a goal is: it proposes moves, and looks at the moves proposed behind it."""

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
    """Run a topic in these workers. sites: their rows. expected_ms: its latency there."""

    topic: int
    members: tuple[WorkerId, ...]
    sites: tuple[int, ...]
    expected_ms: float
    reason: str
    hard: bool = True  # not held back by a recent move


@dataclass(frozen=True)
class ClientProposal:
    """Move a client to another home."""

    client: int
    home: int
    reason: str
    hard: bool = False


@dataclass(frozen=True)
class ReplicaProposal:
    """Keep a topic in the stores of these sites."""

    topic: int
    replicas: tuple[str, ...]
    reason: str
    hard: bool = False


Proposal = TopicProposal | ClientProposal | ReplicaProposal


class Draft:
    """The model as it would be after the moves accepted so far; the only thing here that changes."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.managing = model.topics.managing.copy()
        self.latency = model.topics.latency.copy()
        self.rate_out = model.sites.rate_out.copy()
        self.utilisation = model.sites.utilisation.copy()
        self.home = model.clients.home.copy()
        self.client_load = model.client_load()

    def apply(self, proposal: Proposal) -> None:
        """Take a move as made."""
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
        """Resources are taken to grow with the rate."""
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
    """One concern. `name` is what people read."""

    name: str

    def propose(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """Moves that would serve this goal, most needed first."""

    def objection(self, draft: Draft, proposal: Proposal, settings: CoordinatorSettings) -> str:
        """Why a move of a later goal must not be made; empty when it may."""
