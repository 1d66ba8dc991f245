"""A topic's clients at a site as a constant number of figures (Section 3.2 of ePulsar). A pure function."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

from nearcast.domain.latency_histogram import BUCKETS, percentile
from nearcast.domain.ranges import LARGEST_FIGURE
from nearcast.domain.topic import overlaps
from nearcast.protocol.reports import ClientReport, ClientTopic, SiteWay, TopicReport, is_channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nearcast.coordinates import Coordinate

__all__ = ["aggregate", "site_ways"]

_SITES = 8  # of which a topic's ways are told, whatever the number of sites and clients
_MOST_OTHERS = 2_000  # topics that are not registered, and channels, of one report
_MOST_WILDCARDS = 100  # patterns of one client; each is compared with all registered topics


class _RegisteredTopics:
    """Finds the registered topics that a reported one belongs to, each once. Those of other first levels are no match.

    Registered topics do not overlap: one of exactly this name is the only one.
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self._names = frozenset(topics)
        self._found: dict[str, list[str]] = {name: [name] for name in topics if not _is_pattern(name)}
        self._by_first: defaultdict[str, list[str]] = defaultdict(list)
        self._patterns_by_first: defaultdict[str, list[str]] = defaultdict(list)
        for name in topics:
            first = _first_level(name)
            self._by_first[first].append(name)
            if _is_pattern(name):
                self._patterns_by_first[first].append(name)

    def __contains__(self, topic: str) -> bool:
        return topic in self._names

    def of(self, topic: str) -> list[str]:
        """Itself, if there is none."""
        found = self._found.get(topic)
        if found is None:
            found = [] if is_channel(topic) else [name for name in self._candidates(topic) if overlaps(name, topic)]
            found = self._found[topic] = found or [topic]
        return found

    def _candidates(self, topic: str) -> Iterable[str]:
        first = _first_level(topic)
        if not first:
            return self._names
        groups = self._by_first if _is_pattern(topic) else self._patterns_by_first
        return chain(groups.get(first, ()), groups.get("", ()))


def _first_level(topic: str) -> str:
    """Empty if it is a wildcard."""
    first = topic.partition(".")[0]
    return "" if first in ("*", ">") else first


def _is_pattern(topic: str) -> bool:
    return "*" in topic or topic.endswith(">")


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
    registered = _RegisteredTopics(topics)
    for client in clients:
        patterns = 0
        for part in client.topics:
            if _is_pattern(part.topic):
                patterns += 1
                if patterns > _MOST_WILDCARDS:
                    continue
            names = registered.of(part.topic)
            for name in names:
                sums[name].add(client, part, 1 / len(names))
    between = between or {}
    # A client may make up topics: of those that nobody registered, and of channels, the ones with most clients.
    others = sorted((name for name in sums if name not in registered), key=lambda name: (-sum(sums[name].count), name))
    for name in others[_MOST_OTHERS:]:
        del sums[name]
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
    samples, rates = sum(found.latency), [min(rate, LARGEST_FIGURE) for rate in found.rates]
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
        rates[0],
        rates[1],
        rates[2],
        rates[3],
        min(float(samples), LARGEST_FIGURE),
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
