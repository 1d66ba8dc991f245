"""Builds the model from the registry and the last reports."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.model.client_columns import coordinate_columns
from nearcast.coordinator.model.model import Model, SiteColumns, TopicColumns, WorkerColumns
from nearcast.coordinator.model.topic_ways import site_round_trips, topic_ways
from nearcast.coordinator.monitor import DIMENSIONS, FIGURES, has_processor
from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.reports import BrokerFigures, channel_row

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model.model import ClientColumns, Flags, Floats, Ints
    from nearcast.coordinator.monitor import Monitor, ReportColumns
    from nearcast.protocol.control import TopicRecord
    from nearcast.protocol.registration import SiteInfo
    from nearcast.protocol.reports import SiteReport

__all__ = ["build_model"]

_SAMPLES = 20  # latencies that a p90 needs


def build_model(
    sites: Mapping[str, SiteInfo],
    topics: Mapping[str, TopicRecord],
    clients: ClientColumns,
    monitor: Monitor,
    now: float,
    settings: CoordinatorSettings,
    settled: Mapping[str, float] | None = None,
    held: Collection[str] = (),
    just_late: Collection[str] = (),
) -> Model:
    """The model of the present state. Rows of sites and topics are in the order of their names.

    settled: when the last move of a topic or of its clients ended. held: `topic T`, `client C` that may not move yet.
    just_late: topics that were not late a few seconds ago.
    """
    names = tuple(sorted(sites))
    row_of = {name: row for row, name in enumerate(names)}
    records = tuple(topics[name] for name in sorted(topics))
    site_columns = _sites([sites[name] for name in names], monitor, now, settings)
    workers = _workers(records, row_of, monitor.reports)
    if held:
        clients = replace(clients, held=np.array([f"client {name}" in held for name in clients.names], dtype=bool))
    in_worker = np.zeros(len(records))
    np.maximum.at(in_worker, workers.topic, workers.p90_ms)
    return Model(
        site_columns,
        _topics(records, site_columns, monitor, in_worker, settings, settled or {}, held, just_late),
        clients,
        workers,
        _channel_rates(clients.channels, list(monitor.columns.values())),
    )


def _sites(sites: Sequence[SiteInfo], monitor: Monitor, now: float, settings: CoordinatorSettings) -> SiteColumns:
    lost, lost_stores = monitor.lost(now), monitor.lost_stores(now)
    reports = [monitor.reports.get(site.name) for site in sites]
    brokers = [report.broker if report is not None else BrokerFigures() for report in reports]
    placed, position, height = coordinate_columns([report.coordinate if report else None for report in reports])
    return SiteColumns(
        tuple(site.name for site in sites),
        alive=np.array([site.name not in lost for site in sites], dtype=bool),
        placed=placed,
        position=position,
        height=height,
        utilisation=np.array([(broker.cpu, broker.memory, broker.network) for broker in brokers]).reshape(-1, 3),
        rate_out=np.array([broker.messages_out for broker in brokers]),
        rate_limit=np.full(len(sites), settings.rate_out_limit),
        store=np.array([site.store for site in sites], dtype=bool),
        store_up=np.array([site.name not in lost_stores for site in sites], dtype=bool),
        round_trip=site_round_trips(
            [site.name for site in sites],
            {} if settings.distances == "coordinates" else {name: r.round_trips for name, r in monitor.reports.items()},
            _estimated_round_trips(placed, position, height),
        ),
    )


def _estimated_round_trips(placed: Flags, position: Floats, height: Floats) -> Floats:
    from scipy.spatial.distance import cdist

    estimated = cdist(position, position) + height[:, None] + height[None, :]
    estimated[~placed] = estimated[:, ~placed] = np.inf
    return np.asarray(estimated)


def _topics(
    records: Sequence[TopicRecord],
    sites: SiteColumns,
    monitor: Monitor,
    in_worker: Floats,
    settings: CoordinatorSettings,
    settled: Mapping[str, float],
    held: Collection[str],
    just_late: Collection[str],
) -> TopicColumns:
    number = {record.spec.name: row for row, record in enumerate(records)}
    row_of = {name: row for row, name in enumerate(sites.names)}
    count = len(records)
    managing = np.zeros((count, len(row_of)), dtype=bool)
    for row, record in enumerate(records):
        managing[row, [row_of[site] for site in record.spec.managed_by if site in row_of]] = True
    bound = np.array([record.spec.bound_ms if record.spec.bound_ms else np.inf for record in records])
    topic, values, since = _reported(number, monitor)
    field = {name: values[:, n] for n, name in enumerate(FIGURES)}
    legs, ways = [], []
    for role, name in enumerate(("producer", "consumer")):
        leg, way = _by_coordinates(topic, values, field, name, role, sites, count)
        if settings.distances == "measured":
            measured = topic_ways(monitor.columns, role, number, row_of, managing, sites.round_trip)
            leg, way = (np.where(np.isnan(m), e, m) for m, e in zip(measured, (leg, way), strict=True))
        legs.append(leg)
        ways.append(way)
    processed = managing.any(axis=1)
    for leg in legs:
        leg[~processed] = 0.0  # the home of each subscriber delivers: nothing can be moved
    # Samples from before a topic's last move say nothing about where it is now.
    fresh = np.array([settled.get(record.spec.name, -np.inf) for record in records])[topic] <= since
    enough = fresh & (field["samples"] >= _SAMPLES)
    measured_p90, samples = np.full(count, np.nan), np.bincount(topic[fresh], field["samples"][fresh], count)
    np.fmax.at(measured_p90, topic[enough], field["p90_ms"][enough])
    if settings.distances == "coordinates":
        measured_p90[:] = np.nan
    estimate = legs[0] + legs[1] + in_worker
    return TopicColumns(
        tuple(number),
        tuple(records),
        managing,
        bound.reshape(count),
        rate=np.bincount(topic, field["messages_out"] + field["messages_in"], count).astype(float),
        published=np.bincount(topic, field["messages_out"], count).astype(float),
        latency=np.where(np.isfinite(measured_p90) & processed, measured_p90, estimate),
        estimate=estimate,
        measured=measured_p90,
        samples=samples.astype(float),
        way_in=legs[0],
        way_out=legs[1],
        in_worker=in_worker,
        expected=ways[0] + ways[1] + in_worker[:, None],
        held=np.array([f"topic {record.spec.name}" in held for record in records], dtype=bool),
        just_late=np.array([record.spec.name in just_late for record in records], dtype=bool),
        can_run=_can_run(records, sites, monitor),
    )


def _can_run(records: Sequence[TopicRecord], sites: SiteColumns, monitor: Monitor) -> Flags:
    """Sites mostly have the same modules: each set of patterns is compared once."""
    found = np.ones((len(records), len(sites.names)), dtype=bool)
    known: dict[tuple[str, ...], Flags] = {}
    for column, site in enumerate(sites.names):
        report = monitor.reports.get(site)
        if report is None or report.processors is None:
            continue
        patterns = tuple(report.processors)
        if patterns not in known:
            known[patterns] = np.array([has_processor(patterns, record.spec.name) for record in records], dtype=bool)
        found[:, column] = known[patterns]
    return found


def _reported(number: Mapping[str, int], monitor: Monitor) -> tuple[Ints, Floats, Floats]:
    """All rows of all reports: the topic, its figures and centroids, and since when they were gathered."""
    rows, values, since = [], [], []
    for site, report in monitor.columns.items():
        rows.append(np.fromiter(map(number.get, report.names, repeat(-1)), np.int64, len(report.names)))
        values.append(report.values)
        since.append(np.full(len(report.names), monitor.covers_from[site]))
    topic = np.concatenate([*rows, np.empty(0, np.int64)])
    figures = np.concatenate([*values, np.empty((0, len(FIGURES) + 2 * DIMENSIONS))])
    begins = np.concatenate([*since, np.empty(0)])
    known = topic >= 0
    return (topic, figures, begins) if known.all() else (topic[known], figures[known], begins[known])


def _by_coordinates(
    topic: Ints, values: Floats, field: Mapping[str, Floats], name: str, role: int, sites: SiteColumns, count: int
) -> tuple[Floats, Floats]:
    """The leg and the ways to all sites of a role's clients, one way, as coordinates estimate them (ePulsar)."""
    from scipy.spatial.distance import cdist

    first = len(FIGURES) + role * DIMENSIONS
    own = values[:, first : first + DIMENSIONS]
    centroid, deviation, leg = _combined(
        topic, count, field[f"{name}s"], own, field[f"{name}_deviation"], field[f"{name}_leg"]
    )
    ways = cdist(centroid, sites.position) + sites.height + deviation[:, None]
    ways[np.isnan(centroid[:, 0])] = 0.0
    return leg / 2, ways / 2


def _channel_rates(subscriptions: tuple[str, ...], columns: Sequence[ReportColumns]) -> np.ndarray:
    """Results per second of each subscription: the mean of its channel, because reports have one row per channel."""
    received: defaultdict[str, float] = defaultdict(float)
    consumers: defaultdict[str, float] = defaultdict(float)
    for report in columns:
        for part in report.channels:
            received[part.topic] += part.messages_in
            consumers[part.topic] += part.consumers
    rows = [channel_row(name.partition(".")[0]) for name in subscriptions]
    return np.array([received[row] / consumers[row] if consumers[row] else 0.0 for row in rows], dtype=float)


def _combined(
    topic: np.ndarray, count: int, clients: np.ndarray, own: np.ndarray, away: np.ndarray, leg: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centroid, deviation and leg of each topic's producers (or consumers), combined from the sites' reports.

    The deviation from the common centroid is at most the deviation from a site's own centroid plus the distance between
    the two. So W(t) is exact when all clients of a topic are at one site, and an upper bound otherwise.
    """
    known = np.isfinite(own).all(axis=1) & (clients > 0)
    rows, weight = topic[known], clients[known]
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


def _workers(
    records: Sequence[TopicRecord], row_of: Mapping[str, int], reports: Mapping[str, SiteReport]
) -> WorkerColumns:
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
    return WorkerColumns(
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
