"""Replicas near demand: replicas move when their readers are elsewhere, or when a store is lost.

The number of stores in a topic's record is the wished number of replicas, and no plan makes it smaller: a lost store is
replaced by one that answers, or stays in the record when there is none, and continues with what it has when it is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.goals.goal import Goal, Proposal, ReplicaProposal

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model
    from nearcast.placement.storage import StorageProblem

__all__ = ["ReplicaGoal"]

_UNKNOWN_MS = 10_000.0


class ReplicaGoal(Goal):
    """Reassignment of Sourlas et al., Section 6.2: the stores stay, steps 1 and 4 are repeated."""

    name = "replicas near demand"

    def propose(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """Durable topics that other stores would serve with less traffic, and those with a lost store."""
        sites, topics, clients = model.sites, model.topics, model.clients
        stores = np.flatnonzero(sites.store & sites.store_up & sites.alive)
        durable = np.array([row for row, record in enumerate(topics.records) if record.spec.replicas], dtype=np.int64)
        if len(stores) < 2 or not len(durable):
            return []
        demand = np.zeros((len(topics.names), len(sites.names)))
        wants = clients.subscribes & (clients.home[clients.pair_client] >= 0)
        np.add.at(demand, (clients.pair_topic[wants], clients.home[clients.pair_client[wants]]), 1.0)
        demand = demand[durable]
        lost = self._with_lost_store(model, durable, stores)
        considered = (demand.sum(axis=1) > 0) | lost
        if not considered.any():
            return []
        return self._reassigned(model, settings, stores, durable[considered], demand[considered], lost[considered])

    def _with_lost_store(self, model: Model, durable: np.ndarray, stores: np.ndarray) -> np.ndarray:
        up = {model.sites.names[row] for row in stores}
        return np.array([not set(model.topics.records[row].spec.replicas) <= up for row in durable], dtype=bool)

    def _reassigned(
        self,
        model: Model,
        settings: CoordinatorSettings,
        stores: np.ndarray,
        rows: np.ndarray,
        demand: np.ndarray,
        lost: np.ndarray,
    ) -> list[Proposal]:
        from scipy.sparse import csr_array

        from nearcast.placement.storage import StorageProblem, network, reassign

        sites, topics = model.sites, model.topics
        between = np.clip(model.sites.round_trip, 1e-3, _UNKNOWN_MS)  # a site that has not told where it is, is far
        np.fill_diagonal(between, 0.0)
        degrees = np.array([min(len(topics.records[row].spec.replicas), len(stores)) for row in rows], dtype=np.int64)
        problem = StorageProblem(network(csr_array(between)), demand + 1e-6, len(stores), float(len(rows)), degrees)
        plan = reassign(problem, stores)
        number = {name: row for row, name in enumerate(sites.names)}
        current = np.zeros_like(plan.placed)
        for n, row in enumerate(rows):
            current[n, [number[name] for name in topics.records[row].spec.replicas if name in number]] = True
        up = np.isin(np.arange(len(sites.names)), stores)
        cost_now = _costs(problem, current & up)
        cost_then = _costs(problem, plan.placed)
        found: list[Proposal] = []
        for n, row in enumerate(rows.tolist()):
            before = topics.records[row].spec.replicas
            placed = [sites.names[site] for site in np.flatnonzero(plan.placed[n])]
            kept = [name for name in before if name not in placed]
            names = (*placed, *kept[: len(before) - len(placed)])
            if set(names) == set(before):
                continue
            if lost[n]:
                why = "a store that kept it does not answer, or cannot write"
            elif cost_then[n] < (1 - settings.gain) * cost_now[n]:
                why = (
                    f"its subscribers are elsewhere now: the distances to the nearest store add up to "
                    f"{cost_then[n]:.0f} ms instead of {cost_now[n]:.0f} ms"
                )
            else:
                continue
            found.append(ReplicaProposal(row, names, why, hard=bool(lost[n])))
        return found


def _costs(problem: StorageProblem, placed: np.ndarray) -> np.ndarray:
    """Requests times distance to the closest replica, of each topic (Eq. 2 of the paper)."""
    distance, demand = problem.network.distance, problem.demand
    costs = np.full(len(placed), np.inf)
    for n, row in enumerate(placed):
        holders = np.flatnonzero(row)
        if len(holders):
            costs[n] = float(demand[n] @ distance[holders].min(axis=0))
    return costs
