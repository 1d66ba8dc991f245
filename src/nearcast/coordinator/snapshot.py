"""Makes the model: registry and last reports in, columns out."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.model import Clients, Model, Sites, Topics, Workers
from nearcast.domain.topic import overlaps
from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.reports import channel_row, is_channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.protocol.control import TopicRecord
    from nearcast.protocol.registration import ClientRecord, SiteInfo
    from nearcast.protocol.reports import SiteReport

__all__ = ["ClientColumns", "TopicColumns", "snapshot"]

DIMENSIONS = 8


_FIELDS = (
    "producers", "consumers", "producer_deviation", "consumer_deviation", "producer_leg", "consumer_leg",
    "messages_out", "messages_in",
)  # fmt: skip
_figures_of = attrgetter(*_FIELDS)


class TopicColumns:
    """A report's topics as an array, made once when the report comes: a row of figures and two centroids each."""

    def __init__(self, report: SiteReport) -> None:
        self.names = [part.topic for part in report.topics]
        rows = [(*_figures_of(part), *part.producer_centroid, *part.consumer_centroid) for part in report.topics]
        self.values = np.array(rows, dtype=float).reshape(len(rows), len(_FIELDS) + 2 * DIMENSIONS)
        self.channels = [part for part in report.topics if is_channel(part.topic)]


class ClientColumns:
    """The clients' columns, made anew only when a client came, went or changed, or topics did."""

    def __init__(self) -> None:
        self._version: tuple[int, tuple[str, ...], tuple[str, ...]] | None = None
        self._made: Clients | None = None

    def of(
        self, version: int, clients: Mapping[str, ClientRecord], topics: tuple[str, ...], sites: tuple[str, ...]
    ) -> Clients:
        """The columns for a version of the registry's clients."""
        if self._made is None or self._version != (version, topics, sites):
            self._version = (version, topics, sites)
            self._made = _clients(clients, topics, sites)
        return self._made


def snapshot(
    sites: Mapping[str, SiteInfo],
    topics: Mapping[str, TopicRecord],
    reports: Mapping[str, SiteReport],
    columns: Mapping[str, TopicColumns],
    lost: set[str],
    lost_stores: set[str],
    settings: CoordinatorSettings,
    clients: Clients,
) -> Model:
    """The model of one moment. columns: the topics of each report."""
    names = tuple(sorted(sites))
    row_of = {name: row for row, name in enumerate(names)}
    records = tuple(topics[name] for name in sorted(topics))
    return Model(
        _sites(names, sites, reports, lost, lost_stores, settings),
        _topics(records, row_of, list(columns.values())),
        clients,
        _workers(records, row_of, reports),
        _channel_rates(clients.channels, list(columns.values())),
    )


def _sites(
    names: tuple[str, ...],
    sites: Mapping[str, SiteInfo],
    reports: Mapping[str, SiteReport],
    lost: set[str],
    lost_stores: set[str],
    settings: CoordinatorSettings,
) -> Sites:
    found = [reports.get(name) for name in names]
    where = [report.coordinate if report is not None else None for report in found]
    return Sites(
        names,
        alive=np.array([name not in lost for name in names], dtype=bool),
        placed=np.array([place is not None for place in where], dtype=bool),
        position=np.array([place.position if place else (0.0,) * DIMENSIONS for place in where]).reshape(
            -1, DIMENSIONS
        ),
        height=np.array([place.height if place else 0.0 for place in where]),
        utilisation=np.array(
            [(r.broker.cpu, r.broker.memory, r.broker.network) if r is not None else (0.0, 0.0, 0.0) for r in found]
        ).reshape(-1, 3),
        rate_out=np.array([r.broker.messages_out if r is not None else 0.0 for r in found]),
        rate_limit=np.full(len(names), settings.rate_out_limit),
        store=np.array([sites[name].store for name in names], dtype=bool),
        store_up=np.array([name not in lost_stores for name in names], dtype=bool),
        worker_slots=np.array([sites[name].workers for name in names], dtype=np.int64),
        cloud=np.array([sites[name].kind == "cloud" for name in names], dtype=bool),
    )


def _topics(records: Sequence[TopicRecord], row_of: Mapping[str, int], columns: Sequence[TopicColumns]) -> Topics:
    number = {record.spec.name: row for row, record in enumerate(records)}
    count = len(records)
    managing = np.zeros((count, len(row_of)), dtype=bool)
    for row, record in enumerate(records):
        managing[row, [row_of[site] for site in record.spec.managed_by if site in row_of]] = True
    bound = np.array([record.spec.bound_ms if record.spec.bound_ms else np.inf for record in records])
    rows = [np.fromiter((number.get(name, -1) for name in one.names), np.int64, len(one.names)) for one in columns]
    topic = np.concatenate([*rows, np.empty(0, np.int64)])
    values = np.concatenate([*(one.values for one in columns), np.empty((0, len(_FIELDS) + 2 * DIMENSIONS))])
    topic, values = topic[topic >= 0], values[topic >= 0]
    field = {name: values[:, n] for n, name in enumerate(_FIELDS)}
    deviation, latency = np.zeros(count), np.zeros(count)
    centroids = []
    for n, role in enumerate(("producer", "consumer")):
        first = len(_FIELDS) + n * DIMENSIONS
        own = values[:, first : first + DIMENSIONS]
        centroid, away, leg = _side(
            topic, count, field[f"{role}s"], own, field[f"{role}_deviation"], field[f"{role}_leg"]
        )
        centroids.append(centroid)
        deviation += away
        latency += leg
    latency[managing.sum(axis=1) == 0] = 0.0
    return Topics(
        tuple(number),
        tuple(records),
        managing,
        bound.reshape(count),
        rate=np.bincount(topic, field["messages_out"] + field["messages_in"], count).astype(float),
        published=np.bincount(topic, field["messages_out"], count).astype(float),
        producer_centroid=centroids[0],
        consumer_centroid=centroids[1],
        deviation=deviation,
        latency=latency,
    )


def _channel_rates(subscriptions: tuple[str, ...], columns: Sequence[TopicColumns]) -> np.ndarray:
    """Results per second of each subscription: reports have one row per channel, so all of its subscriptions' mean."""
    received: defaultdict[str, float] = defaultdict(float)
    takers: defaultdict[str, float] = defaultdict(float)
    for one in columns:
        for part in one.channels:
            received[part.topic] += part.messages_in
            takers[part.topic] += part.consumers
    rows = [channel_row(name.partition(".")[0]) for name in subscriptions]
    return np.array([received[row] / takers[row] if takers[row] else 0.0 for row in rows], dtype=float)


def _side(
    topic: np.ndarray, count: int, people: np.ndarray, own: np.ndarray, away: np.ndarray, leg: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One side's centroid, deviation and leg of each topic, put together from what the sites report.

    The deviation from the common centroid is at most that from a site's own plus the way between the two: W(t) is an
    upper bound when a topic's clients are at several sites, and exact at one.
    """
    known = np.isfinite(own).all(axis=1) & (people > 0)
    rows, weight = topic[known], people[known]
    total = np.bincount(rows, weight, count)
    centroid = np.full((count, DIMENSIONS), np.nan)
    for axis in range(DIMENSIONS):
        summed = np.bincount(rows, weight * own[known, axis], count)
        centroid[:, axis] = np.divide(summed, total, out=np.full(count, np.nan), where=total > 0)
    deviation, legs = np.zeros(count), np.zeros(count)
    apart = np.linalg.norm(own[known] - centroid[rows], axis=1)
    np.maximum.at(deviation, rows, apart + away[known])
    np.maximum.at(legs, rows, leg[known])
    return centroid, deviation, legs


def _clients(clients: Mapping[str, ClientRecord], topics: tuple[str, ...], sites: tuple[str, ...]) -> Clients:
    row_of = {name: row for row, name in enumerate(sites)}
    number = {name: row for row, name in enumerate(topics)}
    patterns = [name for name in topics if "*" in name or ">" in name]
    cache: dict[str, list[int]] = {}

    def rows(wanted: str) -> list[int]:
        """The registered topics that a name or pattern meets."""
        found = cache.get(wanted)
        if found is None:
            if wanted in number:
                found = [number[wanted]]
            else:
                among = topics if "*" in wanted or ">" in wanted else patterns
                found = [number[name] for name in among if overlaps(name, wanted)]
            cache[wanted] = found
        return found

    records = list(clients.values())
    places = [record.coordinate for record in records]
    pairs: dict[tuple[int, int], int] = {}
    for row, record in enumerate(records):
        for role, wanted in ((1, record.publishes), (2, record.subscribes)):
            for name in wanted:
                for topic in rows(name):
                    pairs[row, topic] = pairs.get((row, topic), 0) | role
    held = [(row, name) for row, record in enumerate(records) for name in record.channels]
    shared = {name: row for row, name in enumerate(sorted({name for _, name in held}))}
    keys = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    roles = np.fromiter(pairs.values(), np.int64, len(pairs))
    nowhere = (0.0,) * DIMENSIONS
    return Clients(
        tuple(record.name for record in records),
        home=np.fromiter((row_of.get(record.home, -1) for record in records), np.int64, len(records)),
        placed=np.array([place is not None for place in places], dtype=bool),
        position=np.array([place.position if place else nowhere for place in places]).reshape(-1, DIMENSIONS),
        height=np.array([place.height if place else 0.0 for place in places]),
        pair_client=keys[:, 0],
        pair_topic=keys[:, 1],
        publishes=(roles & 1) > 0,
        subscribes=(roles & 2) > 0,
        channels=tuple(shared),
        held_client=np.fromiter((row for row, _ in held), np.int64, len(held)),
        held_channel=np.fromiter((shared[name] for _, name in held), np.int64, len(held)),
    )


def _workers(records: Sequence[TopicRecord], row_of: Mapping[str, int], reports: Mapping[str, SiteReport]) -> Workers:
    number = {record.spec.name: row for row, record in enumerate(records)}
    figures = {
        (WorkerId(site, worker.worker), topic.topic): topic
        for site, report in reports.items()
        for worker in report.workers
        for topic in worker.topics
    }
    busy = {WorkerId(site, w.worker): w.busy for site, report in reports.items() for w in report.workers}
    names = tuple(sorted({name for record in records for name in record.members} | set(busy)))
    names = tuple(name for name in names if name.site in row_of)
    worker_of = {name: row for row, name in enumerate(names)}
    rows = [
        (number[record.spec.name], worker_of[name], figures.get((name, record.spec.name)))
        for record in records
        for name in record.members
        if name in worker_of
    ]
    return Workers(
        names,
        site=np.array([row_of[name.site] for name in names], dtype=np.int64),
        busy=np.array([busy.get(name, 0.0) for name in names]),
        topic=np.array([topic for topic, _, _ in rows], dtype=np.int64),
        worker=np.array([worker for _, worker, _ in rows], dtype=np.int64),
        rate=np.array([found.rate if found else 0.0 for _, _, found in rows]),
        processing_ms=np.array([found.processing_ms if found else 0.0 for _, _, found in rows]),
        p90_ms=np.array([found.p90_ms if found else 0.0 for _, _, found in rows]),
        waiting=np.array([found.waiting if found else 0 for _, _, found in rows], dtype=np.int64),
    )
