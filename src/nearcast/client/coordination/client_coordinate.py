"""A client's network coordinate: the Vivaldi update against some sites, or the nearest site's plus the access delay."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nearcast.coordinates import Coordinate, Node
from nearcast.errors import InputError

if TYPE_CHECKING:
    from nearcast.protocol.registration import SiteCoordinate

__all__ = ["ClientCoordinate"]


class ClientCoordinate:
    """The coordinate of one client. `fixed` is used as it is given.

    A mobile client is no node of its own (its place changes faster than a coordinate converges): it takes the
    coordinate of the site it is nearest to, with its access delay as height (ePulsar's NC proxy).
    """

    def __init__(self, fixed: Coordinate | None = None, *, mobile: bool = False) -> None:
        self.fixed, self._mobile = fixed, mobile
        self._node = Node()
        self._measured = False
        self._proxy: Coordinate | None = None

    @property
    def coordinate(self) -> Coordinate | None:
        """The coordinate, once something is known."""
        if self.fixed is not None:
            return self.fixed
        if self._mobile:
            return self._proxy
        return self._node.coordinate if self._measured else None

    def update(self, reached: list[tuple[SiteCoordinate, float]]) -> None:
        """Take in measured round trips to sites."""
        if not reached:
            return
        if self._mobile:
            nearest, access_ms = min(reached, key=lambda found: found[1])
            self._proxy = nearest.coordinate.behind(access_ms)
            return
        self._measured = True
        for place, ms in reached:
            with contextlib.suppress(InputError):  # a site with an invalid coordinate is ignored
                self._node.update(place.site, place.coordinate, ms)

    def moved(self) -> None:
        """The client has another place in the network now."""
        self._node.moved()
