"""The model as the planners see it: a problem of partitioning (ePulsar), of homes (RELOC) and of balance (BAD)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.balance import from_pairs, loads
from nearcast.placement.partitioning import PartitionSites, PartitionTopics
from nearcast.placement.partitioning.problem import NOWHERE

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model.model import Floats, Ints, Model
    from nearcast.placement.balance import BalanceProblem
    from nearcast.placement.homes import HomesProblem

__all__ = ["balance_problem", "homes_problem", "partitioning_problem", "site_loads", "worker_time_limit"]

_PLANNER_WATERMARK = 0.85


def partitioning_problem(
    model: Model, settings: CoordinatorSettings
) -> tuple[Ints, Ints, PartitionTopics, PartitionSites, Floats]:
    """The topics that one site manages: their rows, the live sites' rows, topics, sites, and W(t, b) of these."""
    sites, topics = model.sites, model.topics
    live, number = _live_sites(model)
    rows = np.flatnonzero(topics.single)
    at = number[topics.site[rows]]
    peak = sites.utilisation[live] * (_PLANNER_WATERMARK / settings.watermark)
    return (
        rows,
        live,
        PartitionTopics(
            at,
            topics.bound[rows],
            topics.rate[rows],
            np.empty((len(rows), 0)),
            np.empty((len(rows), 0)),
            np.zeros(len(rows)),
            np.where(at == NOWHERE, np.inf, topics.latency[rows]),
        ),
        PartitionSites(sites.position[live], sites.height[live], sites.rate_limit[live], peak),
        topics.expected[np.ix_(rows, live)],
    )


def homes_problem(model: Model, live: Ints, topics: Ints) -> tuple[Ints, HomesProblem]:
    """These topics and their clients: the clients' rows, and all delays, one way.

    Sites have no limits here: the capacity goal checks them.
    """
    from nearcast.placement.homes import HomesProblem, membership

    clients = model.clients
    pairs = np.isin(clients.pair_topic, topics) & clients.placed[clients.pair_client]
    rows, client = np.unique(clients.pair_client[pairs], return_inverse=True)
    topic = np.searchsorted(topics, clients.pair_topic[pairs])
    shape = (len(topics), len(rows))
    publishes, subscribes = clients.publishes[pairs], clients.subscribes[pairs]
    unlimited = np.full(len(live), 1e9)
    return rows, HomesProblem(
        model.client_distances(rows)[:, live] / 2,
        model.sites.round_trip[np.ix_(live, live)] / 2,
        0.0,
        unlimited,
        unlimited,
        np.ones(len(topics)),
        membership(topic[publishes], client[publishes], shape),
        membership(topic[subscribes], client[subscribes], shape),
    )


def balance_problem(model: Model) -> tuple[Ints, Ints, BalanceProblem, Ints]:
    """The subscribers at live sites: their rows, the sites' rows, their subscriptions, and their present homes.

    A channel subscription counts like a topic: its results come to a site once for all clients that share it.
    """
    clients, topics = model.clients, model.topics
    live, number = _live_sites(model)
    client = np.concatenate([clients.pair_client[clients.subscribes], clients.held_client])
    flow = np.concatenate([clients.pair_topic[clients.subscribes], len(topics.names) + clients.held_channel])
    rates = np.concatenate([topics.published, model.channel_rate])
    at_live_site = number[clients.home[client]] >= 0
    rows, subscriber = np.unique(client[at_live_site], return_inverse=True)
    problem = from_pairs(subscriber, flow[at_live_site], rates, subscribers=len(rows), sites=max(len(live), 1))
    return rows, live, problem, number[clients.home[rows]]


def site_loads(model: Model) -> Floats:
    """F_j of every site: the flows its clients subscribe to, once in, and once out for each subscriber."""
    found = np.zeros(len(model.sites.names))
    _, live, problem, current = balance_problem(model)
    if problem.subscribers:
        found[live] = loads(problem, current)
    return found


def worker_time_limit(model: Model, settings: CoordinatorSettings) -> Floats:
    """How long the messages of each topic may stay in a worker: what the network leaves of the bound, at least half.

    So a topic that is late because it is far away is no reason to split a worker.
    """
    topics = model.topics
    bound = np.where(np.isfinite(topics.bound), topics.bound, settings.default_bound_ms)
    network = np.nan_to_num(topics.way_in + topics.way_out, posinf=0.0)
    return np.asarray(np.maximum(bound / 2, bound - network))


def _live_sites(model: Model) -> tuple[Ints, Ints]:
    """The rows of live sites, and the number of each site among them; -1 for the others and for row -1."""
    live = np.flatnonzero(model.sites.alive)
    number = np.full(len(model.sites.names) + 1, -1)
    number[live] = np.arange(len(live))
    return live, number
