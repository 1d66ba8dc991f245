"""Balance: clients move from heavy to light sites while loads differ too much; all are dealt anew in extreme cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.goals.goal import ClientProposal, Draft, Proposal
from nearcast.placement.balance import BalanceProblem, Thresholds, cov, from_pairs, loads, staged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.coordinator.model import Model
    from nearcast.coordinator.settings import Settings

__all__ = ["Balance", "site_loads"]


class Balance:
    """LDM, after a shuffle when the imbalance is extreme (Nguyen et al., Algorithm 1)."""

    name = "balance"

    def propose(self, model: Model, settings: Settings) -> list[Proposal]:
        """The fewest moves the stages need; none when they would not pay."""
        rows, live, problem, current = _problem(model)
        if len(live) < 2 or not len(rows):
            return []
        before = loads(problem, current)
        if cov(before) <= settings.cov or before.mean() <= settings.mean_load:
            return []
        thresholds = Thresholds(settings.cov, settings.mean_load, settings.shuffle_cov, settings.shuffle_mean_load)
        plan = staged(problem, current, thresholds)
        if cov(plan.loads) > (1 - settings.gain) * cov(before):
            return []
        sites, found = model.sites, []
        heaviest_first = plan.moved[np.argsort(-problem.outgoing[plan.moved], kind="stable")]
        for n in heaviest_first[: settings.client_moves].tolist():
            here, there = sites.names[live[current[n]]], sites.names[live[plan.assignment[n]]]
            why = (
                f"{here} carries {before[current[n]]:.0f} messages/s and {there} {before[plan.assignment[n]]:.0f}; "
                f"with the whole plan loads vary by {cov(plan.loads):.2f} of their mean instead of {cov(before):.2f}"
            )
            found.append(ClientProposal(int(rows[n]), int(live[plan.assignment[n]]), why))
        return list(found)

    def objection(self, draft: Draft, proposal: Proposal, settings: Settings) -> str:
        """No goal comes behind this one."""
        return ""


def site_loads(model: Model) -> NDArray[np.float64]:
    """F_j of every site: what its clients' subscriptions bring in once, and send out to each."""
    found = np.zeros(len(model.sites.names))
    _, live, problem, current = _problem(model)
    if problem.subscribers:
        found[live] = loads(problem, current)
    return found


def _problem(
    model: Model,
) -> tuple[NDArray[np.int64], NDArray[np.int64], BalanceProblem, NDArray[np.int64]]:
    """Subscribers at live sites: their rows, the sites' rows, who subscribes to what, and their homes now."""
    sites, clients, topics = model.sites, model.clients, model.topics
    live = np.flatnonzero(sites.alive)
    number = np.full(len(sites.names) + 1, -1)
    number[live] = np.arange(len(live))
    takes = clients.subscribes & (number[clients.home[clients.pair_client]] >= 0)
    rows, subscriber = np.unique(clients.pair_client[takes], return_inverse=True)
    problem = from_pairs(
        subscriber, clients.pair_topic[takes], topics.published, subscribers=len(rows), brokers=max(len(live), 1)
    )
    return rows, live, problem, number[clients.home[rows]]
