"""The interface of a goal, the moves it proposes, and the draft of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model
    from nearcast.coordinator.model.model import Floats, Ints
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
        self._longer = np.zeros((len(model.topics.names), 2))  # what moves of clients add to each topic's ways, ms

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
            topics, longer = self._with_client_at(proposal.client, proposal.home)
            self._longer[topics] = longer
            self.home[proposal.client] = proposal.home

    def latency_with_client_at(self, client: int, home: int) -> Floats:
        """Upper bounds of the latencies of a client's topics, in the order of its pairs, if it had another home."""
        topics, longer = self._with_client_at(client, home)
        return np.asarray(self.latency[topics] + longer.sum(axis=1))

    def _with_client_at(self, client: int, home: int) -> tuple[Ints, Floats]:
        """A client's topics, and what its new home adds to the ways into and out of them, beside the moves so far.

        The ways lead through the home to the topic's nearest managing site. A way that gets shorter counts as it was:
        another client's may be as long.
        """
        model, clients, before = self.model, self.model.clients, int(self.home[client])
        mine = clients.pairs_of(client)
        topics = clients.pair_topic[mine]
        way = model.client_distances(np.array([client]))[0] / 2
        to_site = np.where(self.managing[topics][:, None, :], model.sites.round_trip / 2, np.inf).min(axis=2)
        to_site[~np.isfinite(to_site)] = 0.0  # nobody processes it
        there = way[home] + to_site[:, home]
        here = way[before] + to_site[:, before] if before >= 0 else 0.0
        added = np.maximum(there - here, 0.0)
        roles = np.stack((clients.publishes[mine], clients.subscribes[mine]), axis=1)
        return topics, np.maximum(self._longer[topics], np.where(roles, added[:, None], 0.0))

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
