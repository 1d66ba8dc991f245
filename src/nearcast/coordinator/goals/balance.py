"""Balance: clients move from heavy to light sites while loads differ too much; all are dealt anew in extreme cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from nearcast.coordinator.goals.goal import ClientProposal, Draft, Proposal
from nearcast.placement.balance import BalancePlan as Plan
from nearcast.placement.balance import BalanceProblem, Thresholds, cov, from_pairs, loads, staged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model

__all__ = ["Balance", "balance_problem", "site_loads"]

_SCHEMES: dict[Literal["ldm", "sdm"], str] = {
    "ldm": "the heaviest clients go to the lightest site",
    "sdm": "clients go where others already follow the same topics",
}


class Balance:
    """LDM and SDM, whichever needs less; after a shuffle when the imbalance is extreme (Nguyen et al., Algorithm 1)."""

    name = "balance"

    def propose(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """The fewest moves the stages need; none when they would not pay."""
        rows, live, problem, current = balance_problem(model)
        if len(live) < 2 or not len(rows):
            return []
        before = loads(problem, current)
        if cov(before) <= settings.cov or before.mean() <= settings.mean_load:
            return []
        thresholds = Thresholds(settings.cov, settings.mean_load, settings.shuffle_cov, settings.shuffle_mean_load)
        dealt_anew = cov(before) > settings.shuffle_cov and before.mean() > settings.shuffle_mean_load
        schemes: list[Literal["ldm", "sdm"]] = ["ldm"] if dealt_anew else ["ldm", "sdm"]  # after it, little is left
        plans = {scheme: staged(problem, current, thresholds, scheme) for scheme in schemes}
        scheme = min(plans, key=lambda name: _merit(plans[name], settings))
        plan = plans[scheme]
        if cov(plan.loads) > (1 - settings.gain) * cov(before):
            return []
        chosen = "all clients are dealt anew" if dealt_anew else _SCHEMES[scheme]
        sites, found = model.sites, []
        heaviest_first = plan.moved[np.argsort(-problem.outgoing[plan.moved], kind="stable")]
        for n in heaviest_first[: settings.client_moves].tolist():
            here, there = sites.names[live[current[n]]], sites.names[live[plan.assignment[n]]]
            why = (
                f"{here} carries {before[current[n]]:.0f} messages/s and {there} {before[plan.assignment[n]]:.0f}, "
                f"so {chosen}; after all these moves the loads of sites differ by {cov(plan.loads):.0%} of their mean "
                f"instead of {cov(before):.0%}"
            )
            found.append(ClientProposal(int(rows[n]), int(live[plan.assignment[n]]), why))
        return list(found)

    def objection(self, draft: Draft, proposal: Proposal, settings: CoordinatorSettings) -> str:
        """No goal comes behind this one."""
        return ""


def _merit(plan: Plan, settings: CoordinatorSettings) -> tuple[bool, float, int]:
    """Balanced first, then the least traffic in all (what is shared is carried once), then the fewest moves."""
    return cov(plan.loads) > settings.cov, round(float(plan.loads.sum()), 6), len(plan.moved)


def site_loads(model: Model) -> NDArray[np.float64]:
    """F_j of every site: what its clients' subscriptions bring in once, and send out to each."""
    found = np.zeros(len(model.sites.names))
    _, live, problem, current = balance_problem(model)
    if problem.subscribers:
        found[live] = loads(problem, current)
    return found


def balance_problem(
    model: Model,
) -> tuple[NDArray[np.int64], NDArray[np.int64], BalanceProblem, NDArray[np.int64]]:
    """Subscribers at live sites: their rows, the sites' rows, who subscribes to what, and their homes now.

    A channel's subscription is one more thing to subscribe to: its results come to a site once for all who share it.
    """
    sites, clients, topics = model.sites, model.clients, model.topics
    live = np.flatnonzero(sites.alive)
    number = np.full(len(sites.names) + 1, -1)
    number[live] = np.arange(len(live))
    client = np.concatenate([clients.pair_client[clients.subscribes], clients.held_client])
    wanted = np.concatenate([clients.pair_topic[clients.subscribes], len(topics.names) + clients.held_channel])
    rates = np.concatenate([topics.published, model.channel_rate])
    takes = number[clients.home[client]] >= 0
    rows, subscriber = np.unique(client[takes], return_inverse=True)
    problem = from_pairs(subscriber, wanted[takes], rates, subscribers=len(rows), sites=max(len(live), 1))
    return rows, live, problem, number[clients.home[rows]]
