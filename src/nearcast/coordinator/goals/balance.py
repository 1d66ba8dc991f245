"""Balance: clients move from heavy to light sites; in extreme cases all homes are reassigned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from nearcast.coordinator.goals.goal import ClientProposal, Goal, Proposal
from nearcast.coordinator.model.problems import balance_problem
from nearcast.placement.balance import Thresholds, cov, loads, staged

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model
    from nearcast.placement.balance import BalancePlan

__all__ = ["BalanceGoal"]

_SCHEMES: dict[Literal["ldm", "sdm"], str] = {
    "ldm": "the heaviest clients go to the lightest site",
    "sdm": "clients go where others already follow the same topics",
}


class BalanceGoal(Goal):
    """LDM or SDM, whichever is better; after a shuffle when the imbalance is extreme (Nguyen et al., Algorithm 1)."""

    name = "balance"

    def propose(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """The moves of the better scheme; none when the gain is too small."""
        rows, live, problem, current = balance_problem(model)
        if len(live) < 2 or not len(rows):
            return []
        before = loads(problem, current)
        if cov(before) <= settings.cov or before.mean() <= settings.mean_load:
            return []
        thresholds = Thresholds(settings.cov, settings.mean_load, settings.shuffle_cov, settings.shuffle_mean_load)
        reassigned = cov(before) > settings.shuffle_cov and before.mean() > settings.shuffle_mean_load
        # After a shuffle the two schemes hardly differ.
        schemes: list[Literal["ldm", "sdm"]] = ["ldm"] if reassigned else ["ldm", "sdm"]
        plans = {scheme: staged(problem, current, thresholds, scheme) for scheme in schemes}
        scheme = min(plans, key=lambda name: _merit(plans[name], settings))
        plan = plans[scheme]
        if cov(plan.loads) > (1 - settings.gain) * cov(before):
            return []
        chosen = "the homes of all clients are reassigned" if reassigned else _SCHEMES[scheme]
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


def _merit(plan: BalancePlan, settings: CoordinatorSettings) -> tuple[bool, float, int]:
    """A sort key: balanced plans first, then the least total traffic, then the fewest moves."""
    return cov(plan.loads) > settings.cov, round(float(plan.loads.sum()), 6), len(plan.moved)
