"""The columns of the model. Sites, topics, clients and workers are row numbers, -1 is none; `names` has their names."""

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

__all__ = ["ClientColumns", "Model", "SiteColumns", "TopicColumns", "WorkerColumns"]


@dataclass(frozen=True)
class SiteColumns:
    """alive: it reports. placed: its coordinate is known. utilisation: CPU, memory, network, each 0 to 1."""

    names: tuple[str, ...]
    alive: Flags
    placed: Flags
    position: Floats
    height: Floats
    utilisation: Floats
    rate_out: Floats
    rate_limit: Floats
    store: Flags  # it has one, up or not
    store_up: Flags


@dataclass(frozen=True)
class TopicColumns:
    """One row per registered topic.

    managing: topics × sites. rate: messages in and out per second (R_out). published: messages published per second.
    A centroid of no clients is NaN. deviation is W(t), latency E(t).
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
class ClientColumns:
    """Registered clients and their topics: row n of the pairs has a client, a topic, and the client's roles."""

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
class WorkerColumns:
    """names, site and busy have a row per worker; the others a row per topic in a worker, with its load and p90."""

    names: tuple[WorkerId, ...]
    site: Ints
    busy: Floats
    topic: Ints
    worker: Ints
    rate: Floats
    processing_ms: Floats
    p90_ms: Floats
    waiting: Ints


@dataclass(frozen=True)
class Model:
    """A snapshot. A draft of a plan makes new ones, with the estimated effect of its moves."""

    sites: SiteColumns
    topics: TopicColumns
    clients: ClientColumns
    workers: WorkerColumns
    channel_rate: Floats  # results per second of each of the clients' channel subscriptions

    def distances(self) -> Floats:
        """Estimated round trips between sites, ms; 0 from a site to itself."""
        from scipy.spatial.distance import cdist

        sites = self.sites
        rtt = cdist(sites.position, sites.position) + sites.height[:, None] + sites.height[None, :]
        np.fill_diagonal(rtt, 0.0)
        return np.asarray(rtt)

    def client_distances(self, rows: Ints) -> Floats:
        """Estimated round trips between clients and all sites, ms."""
        from scipy.spatial.distance import cdist

        clients, sites = self.clients, self.sites
        rtt = cdist(clients.position[rows], sites.position)
        return np.asarray(rtt + clients.height[rows, None] + sites.height[None, :])

    def client_load(self) -> Floats:
        """Messages per second between each client and its home."""
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
        """Members for a topic at these sites: the workers it has there already, else each site's least busy one."""
        here = dict(self.topics.records[topic].members)
        names = [self.sites.names[row] for row in sites]
        return tuple(WorkerId(name, here.get(name) or self.least_busy_worker(name)) for name in names)

    def least_busy_worker(self, site: str) -> str:
        """The name of a site's least busy worker; the first one's when it has none."""
        return self._least_busy.get(site, "worker-0")

    @cached_property
    def _least_busy(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for row in np.argsort(-self.workers.busy, kind="stable").tolist():  # the last one written is the least busy
            site, worker = self.workers.names[row]
            found[site] = worker
        return found
