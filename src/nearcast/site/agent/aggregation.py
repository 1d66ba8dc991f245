"""A topic's clients at a site as a constant number of figures (Section 3.2 of ePulsar). A pure function."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from nearcast.domain.latency_histogram import BUCKETS, percentile
from nearcast.domain.topic import matches, overlaps
from nearcast.protocol.reports import ClientReport, ClientTopic, SiteWay, TopicReport, is_channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nearcast.coordinates import Coordinate

__all__ = ["aggregate", "site_ways"]

_SITES = 8  # of which a topic's ways are told, whatever the number of sites and clients


class _Sums:
    """The sums over the clients of one topic."""

    def __init__(self) -> None:
        self.producers: list[Coordinate] = []
        self.consumers: list[Coordinate] = []
        self.round_trips: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
        self.count = [0, 0]
        self.rates = [0.0] * 4
        self.latency = [0] * BUCKETS

    def add(self, client: ClientReport, part: ClientTopic, share: float) -> None:
        roles = ((part.publishes, self.producers), (part.subscribes, self.consumers))
        for role, (takes_part, coordinates) in enumerate(roles):
            if takes_part:
                self.count[role] += 1
                if client.coordinate is not None:
                    coordinates.append(client.coordinate)
                if client.round_trips:
                    self.round_trips[role].append(client.round_trips)
        amounts = (part.messages_out, part.bytes_out, part.messages_in * share, part.bytes_in * share)
        for n, amount in enumerate(amounts):
            self.rates[n] += amount / client.seconds
        for bucket, count in part.latency.items():
            self.latency[bucket] += count


def aggregate(
    clients: Iterable[ClientReport],
    topics: Sequence[str],
    managing: Mapping[str, Coordinate],
    home: str = "",
    between: Mapping[str, float] | None = None,
    dimensions: int = 8,
) -> list[TopicReport]:
    """One report per topic that a client takes part in.

    topics: names and patterns of the registered topics. managing: where each topic's managing site is. home: this site.
    between: round trips from it to others, ms.
    """
    sums: defaultdict[str, _Sums] = defaultdict(_Sums)
    # Registered topics do not overlap: one of exactly this name is the only one. Others are looked for once.
    families: dict[str, list[str]] = {name: [name] for name in topics if "*" not in name and ">" not in name}
    for client in clients:
        for part in client.topics:
            names = families.get(part.topic)
            if names is None and is_channel(part.topic):
                names = families[part.topic] = [part.topic]
            elif names is None:
                fits = overlaps if part.subscribes else matches
                names = families[part.topic] = [name for name in topics if fits(name, part.topic)] or [part.topic]
            for name in names:
                sums[name].add(client, part, 1 / len(names))
    between = between or {}
    return [_report(name, found, managing.get(name), home, between, dimensions) for name, found in sorted(sums.items())]


def _report(
    name: str,
    found: _Sums,
    managing: Coordinate | None,
    home: str,
    between: Mapping[str, float],
    dimensions: int,
) -> TopicReport:
    producer_centroid = _centroid(found.producers, dimensions)
    consumer_centroid = _centroid(found.consumers, dimensions)
    samples = sum(found.latency)
    return TopicReport(
        name,
        float(found.count[0]),
        float(found.count[1]),
        producer_centroid,
        consumer_centroid,
        _farthest(found.producers, producer_centroid, 0.0),
        _farthest(found.consumers, consumer_centroid, 0.0),
        _farthest(found.producers, managing.position, managing.height) if managing else 0.0,
        _farthest(found.consumers, managing.position, managing.height) if managing else 0.0,
        site_ways(found.round_trips[0], home, between),
        site_ways(found.round_trips[1], home, between),
        found.rates[0],
        found.rates[1],
        found.rates[2],
        found.rates[3],
        float(samples),
        percentile(found.latency, 0.9),
    )


def _centroid(nodes: Sequence[Coordinate], dimensions: int) -> tuple[float, ...]:
    if not nodes:
        return (math.nan,) * dimensions
    return tuple(sum(axis) / len(nodes) for axis in zip(*(node.position for node in nodes), strict=True))


def _farthest(places: Sequence[Coordinate], point: tuple[float, ...], height: float) -> float:
    """Each node's height counts once; a centroid is a place and no node, and has none."""
    return max((math.dist(place.position, point) + place.height + height for place in places), default=0.0)


def site_ways(clients: Sequence[Mapping[str, float]], home: str, between: Mapping[str, float]) -> list[SiteWay]:
    """The worst and the mean way of clients to each of the nearest sites that one of them measured.

    clients: the round trips that each measured. A client that did not measure a site reaches it through its home.
    """
    sites = {site for measured in clients for site in measured}
    found = []
    for site in sites:
        ways = [
            measured.get(site, measured.get(home, math.inf) + between.get(site, math.inf)) / 2 for measured in clients
        ]
        if (worst := max(ways)) < math.inf:
            found.append(SiteWay(site, worst, sum(ways) / len(ways)))
    return sorted(found, key=lambda way: (way.worst, way.site))[:_SITES]
