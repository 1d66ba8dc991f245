"""A client's network coordinate: the Vivaldi update against some sites, or the nearest site's plus the access delay."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from nearcast.coordinates import Coordinate, Node
from nearcast.coordinates.probe import connect_ms
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import call
from nearcast.protocol.registration import SiteCoordinate, SiteCoordinates

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["ClientCoordinate"]

_SITES = 8  # a bounded set of peers, whatever the number of sites


class ClientCoordinate:
    """The coordinate of one client. `fixed` is used as it is given.

    A mobile client is no node of its own (its place changes faster than a coordinate converges): it takes the
    coordinate of the site it is nearest to, with its access delay as additional height (ePulsar's NC proxy).
    """

    def __init__(self, fixed: Coordinate | None = None, *, mobile: bool = False) -> None:
        self._fixed, self._mobile = fixed, mobile
        self._node = Node()
        self._measured = False
        self._proxy: Coordinate | None = None

    @property
    def coordinate(self) -> Coordinate | None:
        """The coordinate, once something is known."""
        if self._fixed is not None:
            return self._fixed
        if self._mobile:
            return self._proxy
        return self._node.coordinate if self._measured else None

    async def measure(self, connection: Connection, rounds: int = 1) -> None:
        """Ask the site at the other end for the coordinates of sites, and measure the round trip to some of them."""
        if self._fixed is not None:
            return
        try:
            subject = subjects.site_coordinates(connection.server_name)
            places = (await call(connection, subject, None, SiteCoordinates, timeout=2)).sites[:_SITES]
        except NearcastError:
            return
        for _ in range(rounds):
            taken = await asyncio.gather(*(_measured(place) for place in places))
            reached = [(place, ms) for place, ms in zip(places, taken, strict=True) if ms is not None]
            if self._mobile and reached:
                nearest, access_ms = min(reached, key=lambda found: found[1])
                self._proxy = nearest.coordinate.behind(access_ms)
            elif reached:
                self._measured = True
                for place, ms in reached:
                    with contextlib.suppress(InputError):  # a site with an invalid coordinate is ignored
                        self._node.update(place.site, place.coordinate, ms)


async def _measured(place: SiteCoordinate) -> float | None:
    try:
        return await connect_ms(place.host, place.port, limit=2)
    except (OSError, TimeoutError):
        return None
