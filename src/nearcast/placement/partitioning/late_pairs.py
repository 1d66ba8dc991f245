"""The paper's measure (Section 5.5): which share of the producer-consumer pairs is above the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.partitioning.problem import PartitionClients, PartitionSites

__all__ = ["late_pairs", "pair_counts"]

_BROADCAST = 4096  # pairs of one topic that are compared at once; more are sorted


def pair_counts(clients: PartitionClients, topics: int) -> Ints:
    """How many producer-consumer pairs each topic has; a client that is both makes a pair with itself."""
    producers = np.bincount(clients.topic[clients.produces], minlength=topics)
    return np.asarray(producers * np.bincount(clients.topic[clients.consumes], minlength=topics))


def late_pairs(clients: PartitionClients, sites: PartitionSites, bound: Floats) -> Floats:
    """Topics × sites: how many pairs of a topic would be above its bound at a site."""
    late = np.zeros((len(bound), len(sites)))
    order = np.argsort(clients.topic, kind="stable")
    first = np.searchsorted(clients.topic[order], np.arange(len(bound) + 1))
    for topic in range(len(bound)):
        rows = order[first[topic] : first[topic + 1]]
        leg = cdist(clients.position[rows], sites.position) + clients.height[rows, None] + sites.height
        sent, received = leg[clients.produces[rows]], leg[clients.consumes[rows]]
        if len(sent) * len(received) <= _BROADCAST:
            late[topic] = (sent[:, None] + received > bound[topic]).sum(axis=(0, 1))
        else:
            late[topic] = [_above(*legs, bound[topic]) for legs in zip(sent.T, received.T, strict=True)]
    return late


def _above(sent: Floats, received: Floats, bound: float) -> int:
    """Pairs whose two legs add up to more than the bound."""
    within = np.searchsorted(np.sort(received), bound - sent, side="right")
    return int(len(sent) * len(received) - within.sum())
