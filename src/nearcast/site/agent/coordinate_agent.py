"""A site's network coordinate: the Vivaldi update against some other sites, and the service that tells it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import statistics
import time
import zlib
from collections import deque
from typing import TYPE_CHECKING

from nearcast.coordinates import Coordinate, Node
from nearcast.coordinates.probe import connect_ms
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import interest_settle
from nearcast.nats.rpc import Endpoint, call
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.registration import SiteCoordinate, SiteCoordinates

if TYPE_CHECKING:
    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection

__all__ = ["CoordinateAgent"]

_log = logging.getLogger(__name__)
_FILTER = 3  # round trips per peer whose median counts
_PEERS = 16  # a bounded set, whatever the number of sites
_FIRST_PERIOD, _PERIOD, _FIRST_ROUNDS = 0.1, 1.0, 100  # seconds between measurements; short until it converged


class CoordinateAgent:
    """The coordinate of a site. `fixed`, when set, is used instead of what is measured."""

    def __init__(self, site: SiteSpec, peers: tuple[SiteSpec, ...], connection: Connection) -> None:
        self._site, self._connection = site, connection
        chosen = random.Random(site.name).sample(peers, min(_PEERS, len(peers)))
        self._peers = {peer.name: peer for peer in chosen}
        self._node = Node(seed=zlib.crc32(site.name.encode()))
        self.fixed: Coordinate | None = None
        self.known: dict[str, Coordinate] = {}
        self._failed: set[str] = set()
        self._samples: dict[str, deque[float]] = {}
        self._addresses = {spec.name: (spec.host, spec.port) for spec in (site, *peers)}
        self.endpoint = Endpoint("coordinates", subjects.site_coordinates(site.name), None, self._coordinates)
        self._task: asyncio.Task[None] | None = None

    @property
    def coordinate(self) -> Coordinate:
        """Where this site is."""
        return self.fixed or self._node.coordinate

    @property
    def round_trips(self) -> dict[str, float]:
        """Measured round trips to the peers, filtered, ms; none when the coordinate is given."""
        if self.fixed is not None:
            return {}
        return {site: statistics.median(samples) for site, samples in self._samples.items()}

    @property
    def ready(self) -> bool:
        """Whether all peers that answer have been measured often enough."""
        return all(name in self._failed or len(self._samples.get(name, ())) >= _FILTER for name in self._peers)

    async def start(self) -> None:
        """Measure from now on."""
        self._task = asyncio.create_task(self._measure(), name=f"{self._site.name}: coordinates")

    async def stop(self) -> None:
        """Stop measuring."""
        await cancel_and_wait(self._task)

    def settle(self) -> float:
        """Seconds until a change of interest here is known at every site, by the round trips measured so far."""
        return interest_settle(max(self.round_trips.values(), default=0.0) / 1000)

    async def _coordinates(self, request: None) -> SiteCoordinates:
        known = {self._site.name: self.coordinate, **self.known}
        nearest = sorted(known, key=lambda name: self.round_trips.get(name, 0.0 if name == self._site.name else 1e9))
        places = [SiteCoordinate(name, *self._addresses[name], known[name]) for name in nearest]
        return SiteCoordinates(places, time.time_ns() // 1000)

    async def _measure(self) -> None:
        rounds = 0
        while True:
            for name, peer in list(self._peers.items()):
                try:
                    await self._measure_peer(name, peer)
                except (OSError, TimeoutError, NearcastError) as error:
                    self._failed.add(name)
                    _log.debug("%s: %s not measured: %s", self._site.name, name, error)
                except Exception:
                    self._failed.add(name)
                    _log.exception("%s: %s not measured", self._site.name, name)
                await asyncio.sleep(_FIRST_PERIOD if rounds < _FIRST_ROUNDS else _PERIOD)
            rounds += 1
            if not self._peers:
                await asyncio.sleep(_PERIOD)

    async def _measure_peer(self, name: str, peer: SiteSpec) -> None:
        round_trip = await connect_ms(peer.host, peer.port)
        answer = await call(self._connection, subjects.site_coordinates(name), None, SiteCoordinates, timeout=2)
        for other in answer.sites:
            if other.site in self._addresses and other.site != self._site.name:
                self.known[other.site] = other.coordinate
        self._samples.setdefault(name, deque(maxlen=_FILTER)).append(round_trip)
        self._failed.discard(name)
        if name in self.known:
            with contextlib.suppress(InputError):  # an impossible coordinate is ignored
                self._node.update(name, self.known[name], round_trip)
