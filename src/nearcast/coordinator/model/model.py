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
    round_trip: Floats  # sites × sites, ms: measured, or estimated where nobody measured; 0 from a site to itself


@dataclass(frozen=True)
class TopicColumns:
    """One row per registered topic.

    managing: topics × sites. rate: messages in and out per second (R_out). published: messages published per second.
    Times are one way, from publication to receipt, in ms; so is the bound. way_in and way_out are those of the worst
    clients; with the p90 in the worker they make the estimate, E(t). measured is the subscribers' p90, NaN without
    enough samples since the topic last moved. latency is compared with the bound: what was measured, else the estimate.
    expected is W(t, b), topics × sites. held: its last moves did not last, so that it must be late for longer to move.
    just_late: it was not a few seconds ago, and some of its clients may not have told yet where they are.
    """

    names: tuple[str, ...]
    records: tuple[TopicRecord, ...]
    managing: Flags
    bound: Floats
    rate: Floats
    published: Floats
    latency: Floats
    estimate: Floats
    measured: Floats
    samples: Floats
    way_in: Floats
    way_out: Floats
    in_worker: Floats
    expected: Floats
    held: Flags
    just_late: Flags
    can_run: Flags  # topics × sites: the site has a processor for it, as far as is known

    @cached_property
    def single(self) -> Flags:
        """Whether exactly one site manages it."""
        return np.asarray(self.managing.sum(axis=1) == 1)

    @cached_property
    def site(self) -> Ints:
        """The managing site of topics that have exactly one; -1 for the others."""
        return np.where(self.single, self.managing.argmax(axis=1), -1)


@dataclass(frozen=True)
class ClientColumns:
    """Registered clients and their topics: row n of the pairs has a client, a topic, and the client's roles.

    The pairs are in the order of the clients, none is there twice.

    known: it has a coordinate. placed: its distances can be told, by measurement or by coordinate.
    """

    names: tuple[str, ...]
    home: Ints
    known: Flags
    placed: Flags
    position: Floats
    height: Floats
    near_site: Ints  # clients × the sites they measured; -1 is none
    near_ms: Floats  # the round trips to these
    held: Flags  # its last moves did not last: it stays for a while
    pair_client: Ints
    pair_topic: Ints
    publishes: Flags
    subscribes: Flags
    channels: tuple[str, ...] = ()  # shared subscriptions, as `channel.key`
    held_client: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    held_channel: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def pairs_of(self, client: int) -> slice:
        """The pairs of one client."""
        return slice(*np.searchsorted(self.pair_client, (client, client + 1)).tolist())


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

    def client_distances(self, rows: Ints) -> Floats:
        """Round trips between clients and all sites, ms: measured, else through a measured site or by coordinates,
        whichever is shorter."""
        from scipy.spatial.distance import cdist

        clients, sites = self.clients, self.sites
        rtt = cdist(clients.position[rows], sites.position) + clients.height[rows, None] + sites.height[None, :]
        rtt[~clients.known[rows]] = np.inf
        near, own = clients.near_site[rows], np.arange(len(rows))
        for n in range(near.shape[1]):
            through = clients.near_ms[rows, n, None] + sites.round_trip[near[:, n]]
            rtt = np.where(near[:, n, None] >= 0, np.minimum(rtt, through), rtt)
        for n in range(near.shape[1]):
            measured = near[:, n] >= 0
            rtt[own[measured], near[measured, n]] = clients.near_ms[rows, n][measured]
        return np.asarray(rtt)

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
        return tuple(WorkerId(name, here.get(name) or self._least_busy.get(name, "worker-0")) for name in names)

    @cached_property
    def _least_busy(self) -> dict[str, str]:
        """The least busy worker of each site that has any."""
        found: dict[str, str] = {}
        for row in np.argsort(-self.workers.busy, kind="stable").tolist():  # the last one written is the least busy
            site, worker = self.workers.names[row]
            found[site] = worker
        return found
