"""A topic's clients as a constant number of figures (Section 3.2 of ePulsar), and the paper's measure (Section 5.5).

    NC(i)   position and height          N̄C_P(t), N̄C_C(t)   producer_centroid, consumer_centroid
    P[t]    PartitionTopics.site                W(t)                 PartitionTopics.deviation
    L_th(t) PartitionTopics.bound                 E(t)                 PartitionTopics.latency
    d(a, b) |x_a - x_b| + h_a + h_b      R_out(t)             PartitionTopics.rate

A centroid is a place and no node, so it has no height: the heights of the clients are in W(t) and those of
the sites in d. Each node's height is then counted once per distance, and W(t, b) >= E(t, b) always.
Latencies have the unit of the coordinates: with round trips as coordinates they are round trips.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearcast.placement.arrays import Bools, Floats, Ints

__all__ = [
    "NOWHERE", "PartitionClients", "PartitionSites", "PartitionTopics", "aggregate", "late_pairs", "moved",
    "pair_counts", "worst_latencies",
]  # fmt: skip

NOWHERE = -1  # the site of a topic that has none yet
_BROADCAST = 4096  # pairs of one topic that are compared at once; more are sorted


@dataclass(frozen=True)
class PartitionClients:
    """One row per client of a topic; a client of two topics has two rows."""

    topic: Ints
    produces: Bools
    consumes: Bools
    position: Floats
    height: Floats


@dataclass(frozen=True)
class PartitionSites:
    """Where sites are and what they can take.

    `utilisation` has a column per resource (processor, memory, network), each 0 to 1; empty if unknown.
    """

    position: Floats
    height: Floats
    rate_limit: Floats
    utilisation: Floats = field(default_factory=lambda: np.empty((0, 0)))

    def __len__(self) -> int:
        return len(self.height)


@dataclass(frozen=True)
class PartitionTopics:
    """What the sites report about their topics, the same few figures whatever the number of clients.

    The centroid of no clients is NaN; its leg of the latency is 0. A topic without a site has latency inf.
    """

    site: Ints
    bound: Floats
    rate: Floats
    producer_centroid: Floats
    consumer_centroid: Floats
    deviation: Floats
    latency: Floats

    def __len__(self) -> int:
        return len(self.site)


def aggregate(
    clients: PartitionClients, sites: PartitionSites, site: Ints, bound: Floats, rate: Floats
) -> PartitionTopics:
    """Centroids, W(t) and E(t) of all topics from their clients, in time and memory linear in the clients."""
    deviation = np.zeros(len(site))
    centroids = []
    for topic, position, height in _sides(clients):
        count = np.bincount(topic, minlength=len(site))[:, None]
        total = np.stack([np.bincount(topic, axis, len(site)) for axis in position.T], axis=1)
        centroid = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
        away = np.linalg.norm(position - centroid[topic], axis=1) + height
        deviation += _largest(away, topic, len(site))
        centroids.append(centroid)
    latency = worst_latencies(clients, sites, site)
    return PartitionTopics(site, bound, rate, centroids[0], centroids[1], deviation, latency)


def worst_latencies(clients: PartitionClients, sites: PartitionSites, site: Ints) -> Floats:
    """E(t): the farthest producer plus the farthest consumer, with each topic at the given site."""
    latency = np.zeros(len(site))
    for topic, position, height in _sides(clients):
        host = site[topic]
        leg = np.linalg.norm(position - sites.position[host], axis=1) + height + sites.height[host]
        latency += _largest(leg, topic, len(site))
    latency[site == NOWHERE] = np.inf
    return latency


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


def moved(home: Ints, sites: int) -> Bools:
    """Topics × sites: where a topic would not be at home; one without a home is nowhere moved."""
    return np.asarray((np.arange(sites) != home[:, None]) & (home != NOWHERE)[:, None])


def _sides(clients: PartitionClients) -> Iterator[tuple[Ints, Floats, Floats]]:
    """Topic, position and height of the producers, then of the consumers."""
    for member in (clients.produces, clients.consumes):
        yield clients.topic[member], clients.position[member], clients.height[member]


def _largest(values: Floats, topic: Ints, topics: int) -> Floats:
    """The largest value of each topic, 0 where there is none."""
    largest = np.zeros(topics)
    np.maximum.at(largest, topic, values)
    return largest
