"""Site capacity: topics of lost sites move, and an overloaded site gives away its largest topics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.goals.goal import ClientProposal, Draft, Goal, Proposal, TopicProposal
from nearcast.coordinator.model.problems import partitioning_problem
from nearcast.placement.partitioning import by_latencies
from nearcast.placement.partitioning.problem import NOWHERE

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model

__all__ = ["SiteCapacityGoal"]


class SiteCapacityGoal(Goal):
    """Algorithm 1 of ePulsar for load only. It refuses moves that would overload a site."""

    name = "site capacity"

    def propose(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """Topics without a live site first, then the largest topics of overloaded sites."""
        sites, found = model.sites, list(self._without_lost_sites(model))
        shrunk = {proposal.topic for proposal in found if isinstance(proposal, TopicProposal)}
        rows, live, topics, candidates, expected = partitioning_problem(model, settings)
        if not len(live):
            return found
        # Latency bounds are the next goal's: here no topic is above its bound.
        unbound = replace(topics, latency=np.where(topics.site == NOWHERE, np.inf, 0.0))
        placed = by_latencies(unbound, candidates, expected)
        for n in np.flatnonzero(placed.site != topics.site).tolist():
            row = int(rows[n])
            if placed.site[n] == NOWHERE or row in shrunk:
                continue
            target = int(live[placed.site[n]])
            before = sites.names[int(model.topics.site[row])]
            if topics.site[n] == NOWHERE:
                why = f"{before} is lost, and {sites.names[target]} is the best live site with room for it"
            else:
                why = f"{before} is overloaded, and this is one of its largest topics, {topics.rate[n]:.0f} messages/s"
            members = model.members_at(row, (target,))
            found.append(TopicProposal(row, members, (target,), float(placed.expected[n]), why))
        found.extend(self._clients_of_lost_sites(model))
        return found

    def objection(self, draft: Draft, proposal: Proposal, settings: CoordinatorSettings) -> str:
        """A target must be alive and stay below its limits."""
        sites = draft.model.sites
        if isinstance(proposal, TopicProposal):
            added = [(row, draft.model.topics.rate[proposal.topic]) for row in proposal.sites
                     if not draft.managing[proposal.topic, row]]  # fmt: skip
        elif isinstance(proposal, ClientProposal):
            added = [(proposal.home, draft.client_load[proposal.client])]
        else:
            return ""
        for row, rate in added:
            if not sites.alive[row]:
                return f"site {sites.names[row]} is lost"
            if isinstance(proposal, TopicProposal) and not draft.model.topics.can_run[proposal.topic, row]:
                return f"site {sites.names[row]} has no processor for topic {draft.model.topics.names[proposal.topic]}"
            before = draft.rate_out[row]
            if before + rate > sites.rate_limit[row]:
                return f"site {sites.names[row]} would send more than its {sites.rate_limit[row]:.0f} messages/s"
            peak = draft.utilisation[row].max() * ((before + rate) / before if before > 0 else 1.0)
            if peak > settings.watermark:
                return (
                    f"site {sites.names[row]} would use {peak:.0%} of a resource; {settings.watermark:.0%} is allowed"
                )
        return ""

    def _without_lost_sites(self, model: Model) -> list[Proposal]:
        """Topics of several sites of which some are lost: the others keep running it."""
        topics, sites, found = model.topics, model.sites, []
        many = topics.managing.sum(axis=1) > 1
        hit = many & topics.managing[:, ~sites.alive].any(axis=1) & topics.managing[:, sites.alive].any(axis=1)
        for row in np.flatnonzero(hit).tolist():
            left = tuple(np.flatnonzero(topics.managing[row] & sites.alive).tolist())
            gone = ", ".join(sites.names[n] for n in np.flatnonzero(topics.managing[row] & ~sites.alive))
            why = f"{gone} is lost, and the other sites that run it continue without it"
            found.append(TopicProposal(row, model.members_at(row, left), left, float(topics.latency[row]), why))
        return list(found)

    def _clients_of_lost_sites(self, model: Model) -> list[Proposal]:
        """Clients of lost sites. Most have reconnected elsewhere: this corrects the registry and moves the rest."""
        sites, clients = model.sites, model.clients
        lost = np.flatnonzero((clients.home >= 0) & ~sites.alive[clients.home])
        live = np.flatnonzero(sites.alive)
        if not len(lost) or not len(live):
            return []
        nearest = live[model.client_distances(lost)[:, live].argmin(axis=1)]
        return [
            ClientProposal(
                int(row),
                int(home),
                f"its home {sites.names[clients.home[row]]} is lost, and {sites.names[home]} is the nearest live site",
                hard=True,
            )
            for row, home in zip(lost, nearest, strict=True)
        ]
