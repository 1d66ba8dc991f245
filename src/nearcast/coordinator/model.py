"""The model: everything the goals look at, as one immutable snapshot in NumPy columns.

Rows of sites, topics, clients and workers have numbers; names are in tuples beside the columns. -1 stands for none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nearcast.domain.worker_id import WorkerId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.protocol.control import TopicRecord

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["Clients", "Model", "Sites", "Topics", "Workers"]


@dataclass(frozen=True)
class Sites:
    """alive: heard of lately. placed: its coordinate is known. utilisation: CPU, memory, network, each 0 to 1."""

    names: tuple[str, ...]
    alive: Flags
    placed: Flags
    position: Floats
    height: Floats
    utilisation: Floats
    rate_out: Floats
    rate_limit: Floats
    store: Flags  # it should have one
    store_up: Flags
    worker_slots: Ints
    cloud: Flags


@dataclass(frozen=True)
class Topics:
    """One row per registered topic.

    managing: topics × sites. site: the managing one, where there is exactly one. rate: messages in and out per second
    (R_out). published: messages published per second. Centroids of nobody are NaN. deviation is W(t), latency E(t).
    """

    names: tuple[str, ...]
    records: tuple[TopicRecord, ...]
    managing: Flags
    bound: Floats
    rate: Floats
    published: Floats
    producer_centroid: Floats
    consumer_centroid: Floats
    deviation: Floats
    latency: Floats

    @property
    def processed(self) -> Flags:
        """Whether it has a processor."""
        return np.asarray(self.managing.any(axis=1))

    @property
    def single(self) -> Flags:
        """Whether exactly one site manages it."""
        return np.asarray(self.managing.sum(axis=1) == 1)

    @property
    def site(self) -> Ints:
        """The managing site of topics that have exactly one; -1 for the others."""
        return np.where(self.single, self.managing.argmax(axis=1), -1)


@dataclass(frozen=True)
class Clients:
    """Registered clients, and what they take part in: row n of the pairs says client, topic, and in which role."""

    names: tuple[str, ...]
    home: Ints
    placed: Flags
    position: Floats
    height: Floats
    pair_client: Ints
    pair_topic: Ints
    publishes: Flags
    subscribes: Flags
    channels: tuple[str, ...] = ()  # shared subscriptions, as `channel.key`
    held_client: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    held_channel: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class Workers:
    """One row per topic in a worker: where it runs, what it asks for, and its p90."""

    names: tuple[WorkerId, ...]
    site: Ints  # of each worker
    busy: Floats
    topic: Ints
    worker: Ints
    rate: Floats
    processing_ms: Floats
    p90_ms: Floats
    waiting: Ints


@dataclass(frozen=True)
class Model:
    """A snapshot. Moves give a new one, in which their effect is estimated."""

    sites: Sites
    topics: Topics
    clients: Clients
    workers: Workers
    channel_rate: Floats  # results per second of each of the clients' channel subscriptions

    def distances(self) -> Floats:
        """Estimated round trips between sites, ms; a site is at no distance from itself."""
        from scipy.spatial.distance import cdist

        sites = self.sites
        apart = cdist(sites.position, sites.position) + sites.height[:, None] + sites.height[None, :]
        np.fill_diagonal(apart, 0.0)
        return np.asarray(apart)

    def client_distances(self, rows: Ints) -> Floats:
        """Estimated round trips between clients and all sites, ms."""
        from scipy.spatial.distance import cdist

        clients, sites = self.clients, self.sites
        apart = cdist(clients.position[rows], sites.position)
        return np.asarray(apart + clients.height[rows, None] + sites.height[None, :])

    def client_load(self) -> Floats:
        """Messages per second that each client's home carries for it."""
        clients = self.clients
        publishers = np.bincount(clients.pair_topic[clients.publishes], minlength=len(self.topics.names))
        per_publisher = np.divide(
            self.topics.published, publishers, out=np.zeros(len(publishers)), where=publishers > 0
        )
        load = np.where(clients.subscribes, self.topics.published[clients.pair_topic], 0.0)
        load = load + np.where(clients.publishes, per_publisher[clients.pair_topic], 0.0)
        found = np.bincount(clients.pair_client, load, len(clients.names))
        results = np.bincount(clients.held_client, self.channel_rate[clients.held_channel], len(clients.names))
        return np.asarray(found + results, dtype=float)

    def members_at(self, topic: int, sites: tuple[int, ...]) -> tuple[WorkerId, ...]:
        """Members for a topic at these sites: the workers it has there already, else the site's least busy one."""
        here = dict(self.topics.records[topic].members)
        names = [self.sites.names[row] for row in sites]
        return tuple(WorkerId(name, here.get(name) or self.least_busy_worker(name)) for name in names)

    def least_busy_worker(self, site: str) -> str:
        """A worker of the site with the least to do; the first when it has none."""
        return self._least_busy.get(site, "worker-0")

    @cached_property
    def _least_busy(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for row in np.argsort(-self.workers.busy, kind="stable").tolist():  # the last one written has the least to do
            site, worker = self.workers.names[row]
            found[site] = worker
        return found
