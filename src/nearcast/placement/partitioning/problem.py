"""A topic's clients as a constant number of figures (Section 3.2 of ePulsar).

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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["NOWHERE", "PartitionClients", "PartitionSites", "PartitionTopics", "aggregate", "worst_latencies"]

NOWHERE = -1  # the site of a topic that has none yet


@dataclass(frozen=True)
class PartitionClients:
    """One row per client of a topic; a client of two topics has two rows."""

    topic: NDArray[np.int64]
    produces: NDArray[np.bool_]
    consumes: NDArray[np.bool_]
    position: NDArray[np.float64]
    height: NDArray[np.float64]


@dataclass(frozen=True)
class PartitionSites:
    """Where sites are and what they can take.

    `utilisation` has a column per resource (processor, memory, network), each 0 to 1; empty if unknown.
    """

    position: NDArray[np.float64]
    height: NDArray[np.float64]
    rate_limit: NDArray[np.float64]
    utilisation: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))

    def __len__(self) -> int:
        return len(self.height)


@dataclass(frozen=True)
class PartitionTopics:
    """What the sites report about their topics, the same few figures whatever the number of clients.

    The centroid of nobody is NaN; its leg of the latency is 0. A topic without a site has latency inf.
    """

    site: NDArray[np.int64]
    bound: NDArray[np.float64]
    rate: NDArray[np.float64]
    producer_centroid: NDArray[np.float64]
    consumer_centroid: NDArray[np.float64]
    deviation: NDArray[np.float64]
    latency: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.site)


def aggregate(
    clients: PartitionClients,
    sites: PartitionSites,
    site: NDArray[np.int64],
    bound: NDArray[np.float64],
    rate: NDArray[np.float64],
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


def worst_latencies(clients: PartitionClients, sites: PartitionSites, site: NDArray[np.int64]) -> NDArray[np.float64]:
    """E(t): the farthest producer plus the farthest consumer, with each topic at the given site."""
    latency = np.zeros(len(site))
    for topic, position, height in _sides(clients):
        host = site[topic]
        leg = np.linalg.norm(position - sites.position[host], axis=1) + height + sites.height[host]
        latency += _largest(leg, topic, len(site))
    latency[site == NOWHERE] = np.inf
    return latency


def _sides(
    clients: PartitionClients,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    """Topic, position and height of the producers, then of the consumers."""
    for member in (clients.produces, clients.consumes):
        yield clients.topic[member], clients.position[member], clients.height[member]


def _largest(values: NDArray[np.float64], topic: NDArray[np.int64], topics: int) -> NDArray[np.float64]:
    """The largest value of each topic, 0 where there is none."""
    largest = np.zeros(topics)
    np.maximum.at(largest, topic, values)
    return largest
