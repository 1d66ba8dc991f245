"""Who decides where topics are processed and where clients are at home.

nearcast  the coordinator with default settings; topics begin anywhere (by hash), nothing is known
paper     the same with distances by coordinates and centroids only, as in *ePulsar*
oracle    knows the true delays: at the moment of a change it asks a coordinator that does nothing by itself for moves
fixed     the best places at the start, and never another
hash      sites by consistent hashing of names, as Pulsar does
"""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from nearcast.config.coordinator_settings import CoordinatorSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nearcast.lab.scenarios.scenario import Scenario, ScheduledChange

__all__ = [
    "COORDINATOR_SETTINGS",
    "POLICIES",
    "Oracle",
    "Policy",
    "RequestedMove",
    "StartingPlaces",
    "consistent_hash",
    "missing",
    "starting_places",
]

Policy = Literal["nearcast", "oracle", "paper", "fixed", "hash"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
# What differs from the default settings; a policy that is not there has no coordinator.
COORDINATOR_SETTINGS: dict[Policy, dict[str, Any]] = {
    "nearcast": {},
    "paper": {"distances": "coordinates"},
    "oracle": {"automatic": False},
}
_NEAR = 0.85  # of the bound: the true delays are those of the network alone, and brokers and workers add to them
_RING_POINTS = 64  # of each site: shares of the ring then differ by some 10 %


@dataclass(frozen=True)
class StartingPlaces:
    """The site of each topic, and the home of each client; without homes a coordinator gives them."""

    topics: Mapping[str, str]
    homes: Mapping[str, str] | None


@dataclass(frozen=True)
class RequestedMove:
    """A topic or a client, and the site it shall be at."""

    kind: Literal["topic", "client"]
    subject: str
    target: str


def missing(policy: Policy) -> str | None:
    """Why a policy cannot be run with this version; nothing if it can."""
    if policy == "paper" and "distances" not in CoordinatorSettings.__struct_fields__:
        return "policy paper is not available: the coordinator has no setting `distances`"
    return None


def starting_places(policy: Policy, scenario: Scenario) -> StartingPlaces:
    """Where everything is when the processes start."""
    hashed = {topic: consistent_hash(topic, scenario.edges) for topic in scenario.topics}
    if policy == "hash":
        return StartingPlaces(hashed, {p.name: consistent_hash(p.name, scenario.edges) for p in scenario.participants})
    if policy == "fixed":
        topics = {topic: scenario.best_site(topic, 0.0) for topic in scenario.topics}
        return StartingPlaces(topics, {p.name: scenario.nearest(p.node, 0.0) for p in scenario.participants})
    return StartingPlaces(hashed, None)


def consistent_hash(name: str, sites: Sequence[str]) -> str:
    """The site whose point on a ring of hashes follows the name's.

    >>> consistent_hash("swarm.0", ["zone0", "zone1"]) == consistent_hash("swarm.0", ["zone1", "zone0"])
    True
    """
    ring = sorted((_point(f"{site}#{n}"), site) for site in sites for n in range(_RING_POINTS))
    return ring[bisect.bisect(ring, (_point(name), "")) % len(ring)][1]


def _point(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


class Oracle:
    """Knows the true delays. Moves what comes near its bound, or breaks it, and is better off elsewhere."""

    def __init__(self, scenario: Scenario, places: StartingPlaces) -> None:
        self._scenario = scenario
        self._topics = dict(places.topics)
        self._homes = dict(places.homes or {})

    def at_start(self) -> list[RequestedMove]:
        """Everything to its best place."""
        return self._moves(0.0, self._scenario.topics, {p.node for p in self._scenario.participants}, 0.0)

    def at_change(self, change: ScheduledChange) -> list[RequestedMove]:
        """What a change calls for."""
        return self._moves(change.at, change.affected, {change.node} - {""}, _NEAR * self._scenario.bound_ms)

    def _moves(self, at: float, topics: Iterable[str], nodes: set[str], allowed_ms: float) -> list[RequestedMove]:
        scenario, moves = self._scenario, []
        for topic in topics:
            best, here = scenario.best_site(topic, at), scenario.latency(topic, self._topics[topic], at)
            if here > allowed_ms and scenario.latency(topic, best, at) < here:
                self._topics[topic] = best
                moves.append(RequestedMove("topic", topic, best))
        for participant in scenario.participants:
            if participant.node in nodes:
                home = scenario.nearest(participant.node, at)
                if self._homes.get(participant.name) != home:
                    self._homes[participant.name] = home
                    moves.append(RequestedMove("client", participant.name, home))
        return moves
