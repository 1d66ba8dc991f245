"""Detects anomalies in a model. Each one is a sentence, and a reason to make a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.model.problems import site_loads, worker_time_limit
from nearcast.placement.balance import cov

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model
    from nearcast.protocol.reports import TopicLag

__all__ = ["Anomaly", "detect", "unprocessed"]

_RESOURCES = ("CPU", "memory", "network")
_UNPROCESSED_AFTER = 10.0  # seconds: stores redeliver after two, and a site that restarts takes some
_LISTED = 100  # anomalies of one kind; the goals see all


@dataclass(frozen=True)
class Anomaly:
    """kind: which detector. about: the site, topic or worker."""

    kind: str
    about: str
    sentence: str


def detect(model: Model, settings: CoordinatorSettings, known_sites: frozenset[str]) -> list[Anomaly]:
    """All anomalies. known_sites: the sites that were alive at the last pass."""
    found = [*_sites(model, settings, known_sites), *_topics(model), *_unprocessed(model), *_workers(model, settings)]
    loads = site_loads(model)[model.sites.alive]
    if len(loads) and cov(loads) > settings.cov and loads.mean() > settings.mean_load:
        difference = f"{cov(loads):.0%} of their mean of {loads.mean():.0f} messages/s"
        sentence = f"the loads of sites differ by {difference}; {settings.cov:.0%} is allowed"
        found.append(Anomaly("unbalanced homes", "", sentence))
    return found


def unprocessed(lags: list[TopicLag]) -> list[Anomaly]:
    """Durable topics whose publications nobody processes, or too slowly."""
    return [
        Anomaly(
            "topic not processed",
            lag.topic,
            f"nobody processes topic {lag.topic}: {lag.waiting:,} wait, the oldest for {lag.oldest_s:.0f} s",
        )
        for lag in lags[:_LISTED]
        if lag.oldest_s >= _UNPROCESSED_AFTER
    ]


def _sites(model: Model, settings: CoordinatorSettings, known_sites: frozenset[str]) -> list[Anomaly]:
    sites, found = model.sites, []
    for row, name in enumerate(sites.names):
        if not sites.alive[row]:
            found.append(Anomaly("site lost", name, f"site {name} has not reported for {settings.site_lost_after:g} s"))
            continue
        if name not in known_sites:
            found.append(Anomaly("site joined", name, f"site {name} is new or back"))
        for resource, used in zip(_RESOURCES, sites.utilisation[row], strict=True):
            if used > settings.watermark:
                sentence = f"site {name} uses {used:.0%} of its {resource}; {settings.watermark:.0%} is allowed"
                found.append(Anomaly("site overloaded", name, sentence))
        if sites.rate_out[row] > sites.rate_limit[row]:
            rates = f"{sites.rate_out[row]:.0f} messages/s; {sites.rate_limit[row]:.0f} are allowed"
            found.append(Anomaly("site overloaded", name, f"site {name} sends {rates}"))
        if sites.store[row] and not sites.store_up[row]:
            sentence = f"the store of site {name} has not answered, or cannot write, for {settings.site_lost_after:g} s"
            found.append(Anomaly("store lost", name, sentence))
    return found


def _topics(model: Model) -> list[Anomaly]:
    topics = model.topics
    late = np.flatnonzero(topics.latency > topics.bound)
    return [
        Anomaly(
            "latency bound violated",
            topics.names[row],
            f"topic {topics.names[row]} takes {_took(model, row)}, its bound is {topics.bound[row]:.0f} ms",
        )
        for row in late[:_LISTED].tolist()
    ]


def _unprocessed(model: Model) -> list[Anomaly]:
    """Topics that are managed by a site that cannot process them: their publications would vanish there."""
    topics, sites = model.topics, model.sites
    found = np.argwhere(topics.managing & ~topics.can_run & sites.alive[None, :])
    return [
        Anomaly(
            "no processor",
            topics.names[row],
            f"topic {topics.names[row]} is managed by {sites.names[site]}, which has no processor for it",
        )
        for row, site in found[:_LISTED].tolist()
    ]


def _took(model: Model, row: int) -> str:
    topics = model.topics
    if np.isfinite(topics.measured[row]):
        return f"{topics.measured[row]:.0f} ms (measured p90)"
    return f"up to {topics.latency[row]:.0f} ms (estimated)"


def _workers(model: Model, settings: CoordinatorSettings) -> list[Anomaly]:
    workers, topics = model.workers, model.topics
    if not len(workers.topic):
        return []
    allowed = worker_time_limit(model, settings)[workers.topic]
    slow = np.flatnonzero(workers.p90_ms > allowed)
    found = [
        Anomaly(
            "worker over its bound",
            workers.names[workers.worker[row]],
            f"messages of topic {topics.names[workers.topic[row]]} spend {workers.p90_ms[row]:.0f} ms (p90) in "
            f"{workers.names[workers.worker[row]]}; {allowed[row]:.0f} ms are allowed",
        )
        for row in slow[:_LISTED].tolist()
    ]
    for row in np.flatnonzero(workers.busy > settings.worker_busy)[:_LISTED].tolist():
        busy = f"busy {workers.busy[row]:.0%} of the time; {settings.worker_busy:.0%} is allowed"
        sentence = f"worker {workers.names[row]} is {busy}"
        found.append(Anomaly("worker over its bound", workers.names[row], sentence))
    return found
