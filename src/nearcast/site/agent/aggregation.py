"""A topic's clients at a site as a constant number of figures (Section 3.2 of ePulsar). A pure function."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from nearcast.domain.latency_histogram import BUCKETS
from nearcast.domain.topic import matches, overlaps
from nearcast.protocol.reports import ClientReport, ClientTopic, TopicReport, is_channel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nearcast.coordinates import Coordinate

__all__ = ["aggregate"]


class _Sums:
    """The sums over the clients of one topic."""

    def __init__(self) -> None:
        self.producers: list[Coordinate] = []
        self.consumers: list[Coordinate] = []
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
        amounts = (part.messages_out, part.bytes_out, part.messages_in * share, part.bytes_in * share)
        for n, amount in enumerate(amounts):
            self.rates[n] += amount / client.seconds
        for bucket, count in part.latency.items():
            self.latency[bucket] += count


def aggregate(
    clients: Iterable[ClientReport],
    topics: Sequence[str],
    managing: Mapping[str, Coordinate],
    dimensions: int = 8,
) -> list[TopicReport]:
    """One report per topic that a client takes part in.

    topics: names and patterns of the registered topics. managing: where each topic's managing site is.
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
    return [_report(name, found, managing.get(name), dimensions) for name, found in sorted(sums.items())]


def _report(name: str, found: _Sums, managing: Coordinate | None, dimensions: int) -> TopicReport:
    producer_centroid = _centroid(found.producers, dimensions)
    consumer_centroid = _centroid(found.consumers, dimensions)
    samples = sum(found.latency)
    most = max(found.latency)
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
        found.rates[0],
        found.rates[1],
        found.rates[2],
        found.rates[3],
        float(samples),
        bytes(math.ceil(255 * count / most) if most else 0 for count in found.latency),
    )


def _centroid(nodes: Sequence[Coordinate], dimensions: int) -> tuple[float, ...]:
    if not nodes:
        return (math.nan,) * dimensions
    return tuple(sum(axis) / len(nodes) for axis in zip(*(node.position for node in nodes), strict=True))


def _farthest(nodes: Sequence[Coordinate], point: tuple[float, ...], height: float) -> float:
    """Each node's height counts once; a centroid is a point, not a node, and has none."""
    return max((math.dist(node.position, point) + node.height + height for node in nodes), default=0.0)
