"""What happens in a scenario and when: sites, clients, topics, changes, and the true delays at every moment.

All delays are one way, in milliseconds. Times are seconds since the measured time began; the warm-up comes before 0.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nearcast.lab.wan.topology import LinkSettings, Topology, from_links

__all__ = [
    "CLOUD",
    "FOREVER",
    "FaultKind",
    "Participant",
    "Scenario",
    "ScheduledChange",
    "ScheduledFault",
    "SubscribedSpan",
]

CLOUD = "cloud"
FOREVER = float("inf")
_UNUSED_WAY = 100.0  # between nodes of clients, which never talk to each other


@dataclass(frozen=True)
class SubscribedSpan:
    """A topic somebody subscribes to, from a time to a time."""

    topic: str
    start: float = -FOREVER
    end: float = FOREVER


@dataclass(frozen=True)
class Participant:
    """A client: at which node it is, the topic it publishes to, and those it subscribes to.

    mobile: it changes its place, and says so when it connects.
    """

    name: str
    node: str
    topic: str
    subscribes: tuple[SubscribedSpan, ...]
    mobile: bool = False


@dataclass(frozen=True)
class ScheduledChange:
    """Something a policy must answer: a node's delays change, or the subscribers of topics do.

    subject: who changes. topics: those by whose deliveries the answer is judged. affected: all whose delay may have
    become longer. ways: the node's new one-way delays to some sites; without a node only subscriptions change, as the
    participants' spans say.
    """

    at: float
    subject: str
    topics: tuple[str, ...]
    affected: tuple[str, ...]
    source: str
    target: str
    node: str = ""
    ways: Mapping[str, float] | None = None


FaultKind = Literal["kill coordinator", "cut off coordinator"]


@dataclass(frozen=True)
class ScheduledFault:
    """From a time on, for some seconds: the leading coordinator is killed (for good), or cut off from a site."""

    at: float
    kind: FaultKind
    site: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A whole experiment. `between` holds the delays between sites, `nodes` those of each node to sites at first.

    plotted: the participant whose deliveries are plotted; without one, all are.
    """

    name: str
    sites: tuple[str, ...]
    between: Mapping[tuple[str, str], float]
    nodes: Mapping[str, Mapping[str, float]]
    participants: tuple[Participant, ...]
    changes: tuple[ScheduledChange, ...]
    bound_ms: float
    rate: float
    size: int
    seconds: float
    seed: int
    note: str = ""
    plotted: int | None = None

    @cached_property
    def topics(self) -> tuple[str, ...]:
        """All topics; each is published to by one participant or more."""
        return tuple(dict.fromkeys(participant.topic for participant in self.participants))

    @property
    def edges(self) -> tuple[str, ...]:
        """The sites except the cloud."""
        return tuple(site for site in self.sites if site != CLOUD)

    def topology(self) -> Topology:
        """The wide area as it is at the start."""
        ways = {pair: LinkSettings(delay) for pair, delay in self.between.items()}
        names = list(self.nodes)
        for n, node in enumerate(names):
            ways |= {(node, site): LinkSettings(delay) for site, delay in self.nodes[node].items()}
            ways |= {(node, other): LinkSettings(_UNUSED_WAY) for other in names[:n]}
        return from_links(ways)

    def way(self, node: str, site: str, at: float) -> float:
        """The true delay between a node and a site at a time."""
        times, delays = self._ways[node]
        return delays[bisect.bisect_right(times, at) - 1][site]

    def site_way(self, a: str, b: str) -> float:
        """The delay between two sites."""
        return 0.0 if a == b else self.between.get((a, b)) or self.between[b, a]

    def nearest(self, node: str, at: float) -> str:
        """The edge site nearest to a node."""
        return min(self.edges, key=lambda site: self.way(node, site, at))

    def latency(self, topic: str, site: str, at: float) -> float:
        """The worst delay of a topic processed at a site, everybody being at home at their nearest site."""

        def worst(nodes: set[str]) -> float:
            homes = {node: self.nearest(node, at) for node in nodes}
            return max((self.way(n, home, at) + self.site_way(home, site) for n, home in homes.items()), default=0.0)

        subscribers = {node for node, start, end in self._subscribers[topic] if start <= at < end}
        return worst(self._publishers[topic]) + worst(subscribers)

    def best_site(self, topic: str, at: float) -> str:
        """The site where a topic is processed with the least delay."""
        return min(self.sites, key=lambda site: self.latency(topic, site, at))

    @cached_property
    def _publishers(self) -> dict[str, set[str]]:
        """The nodes that publish to each topic."""
        return {topic: {p.node for p in self.participants if p.topic == topic} for topic in self.topics}

    @cached_property
    def _subscribers(self) -> dict[str, list[tuple[str, float, float]]]:
        """The nodes that subscribe to each topic, and when."""
        found: dict[str, list[tuple[str, float, float]]] = {topic: [] for topic in self.topics}
        for participant in self.participants:
            for span in participant.subscribes:
                found[span.topic].append((participant.node, span.start, span.end))
        return found

    @cached_property
    def _ways(self) -> dict[str, tuple[list[float], list[dict[str, float]]]]:
        found = {node: ([-FOREVER], [dict(ways)]) for node, ways in self.nodes.items()}
        for change in self.changes:
            if change.ways is not None:
                times, delays = found[change.node]
                times.append(change.at)
                delays.append({**delays[-1], **change.ways})
        return found
