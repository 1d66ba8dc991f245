"""A site's place in the network: the Vivaldi update against some other sites, and what is told to whoever asks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import zlib
from typing import TYPE_CHECKING

from nearcast.coordinates import Coordinate, Node
from nearcast.coordinates.probe import connect_ms
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint, Server, call
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.registration import SiteCoordinate, SiteCoordinates

if TYPE_CHECKING:
    from nearcast.domain.site import SiteSpec
    from nearcast.nats.connection import Connection

__all__ = ["CoordinateAgent"]

_log = logging.getLogger(__name__)
_PEERS = 16  # a bounded set, whatever the number of sites
_FIRST_EVERY, _LATER_EVERY, _FIRST_ROUNDS = 0.1, 1.0, 100  # seconds between measurements; quick until it has settled


class CoordinateAgent:
    """The coordinate of a site. `fixed`, when set, is used instead of the measured one."""

    def __init__(self, site: SiteSpec, peers: tuple[SiteSpec, ...], connection: Connection) -> None:
        self._site, self._connection = site, connection
        chosen = random.Random(site.name).sample(peers, min(_PEERS, len(peers)))
        self._peers = {peer.name: peer for peer in chosen}
        self._node = Node(seed=zlib.crc32(site.name.encode()))
        self.fixed: Coordinate | None = None
        self.known: dict[str, Coordinate] = {}
        self.round_trips: dict[str, float] = {}
        self._addresses = {spec.name: (spec.host, spec.port) for spec in (site, *peers)}
        endpoint = Endpoint("coordinates", subjects.site_coordinates(site.name), None, self._coordinates)
        self._server = Server(connection, [endpoint], "nearcast-coordinates")
        self._task: asyncio.Task[None] | None = None

    @property
    def coordinate(self) -> Coordinate:
        """Where this site is."""
        return self.fixed or self._node.coordinate

    async def start(self) -> None:
        """Answer, and measure from now on."""
        await self._server.start()
        self._task = asyncio.create_task(self._measure(), name=f"place of {self._site.name}")

    async def stop(self) -> None:
        """Stop answering and measuring."""
        await self._server.stop()
        await cancel_and_wait(self._task)

    async def _coordinates(self, request: None) -> SiteCoordinates:
        known = {**self.known, self._site.name: self.coordinate}
        places = [SiteCoordinate(name, *self._addresses[name], where) for name, where in known.items()]
        places.sort(key=lambda place: place.site != self._site.name)  # its own first
        return SiteCoordinates(places)

    async def _measure(self) -> None:
        rounds = 0
        while True:
            for name, peer in self._peers.items():
                try:
                    await self._measure_one(name, peer)
                except (OSError, TimeoutError, NearcastError) as error:
                    _log.debug("%s: %s not measured: %s", self._site.name, name, error)
                await asyncio.sleep(_FIRST_EVERY if rounds < _FIRST_ROUNDS else _LATER_EVERY)
            rounds += 1
            if not self._peers:
                await asyncio.sleep(_LATER_EVERY)

    async def _measure_one(self, name: str, peer: SiteSpec) -> None:
        taken = await connect_ms(peer.host, peer.port)
        answer = await call(self._connection, subjects.site_coordinates(name), None, SiteCoordinates, timeout=2)
        for place in answer.places:
            if place.site in self._addresses and place.site != self._site.name:
                self.known[place.site] = place.coordinate
        self.round_trips[name] = taken
        with contextlib.suppress(InputError):  # a peer that tells nonsense is not believed
            self._node.update(name, self.known[name], taken)
