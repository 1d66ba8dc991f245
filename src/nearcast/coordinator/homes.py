"""The home of a client that registers: a policy per deployment, and the next best sites behind it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from nearcast.coordinates import round_trip_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nearcast.coordinates import Coordinate
    from nearcast.coordinator.settings import Settings
    from nearcast.wire.registration import ClientInfo

__all__ = ["HomePolicy"]

_OFFERED = 5


class HomePolicy:
    """Nearest by coordinate, round robin, or random; sites that the client could not reach come last."""

    def __init__(self, settings: Settings) -> None:
        self._policy = settings.homes
        self._turn = 0
        self._random = random.Random(settings.seed)

    def homes(
        self, client: ClientInfo, sites: Collection[str], coordinates: Mapping[str, Coordinate], planned: str = ""
    ) -> list[str]:
        """Sites for a client, best first. `planned`: where the last plan wants it, or where it was."""
        ordered = sorted(sites)
        if self._policy == "random":
            self._random.shuffle(ordered)
        elif self._policy == "round_robin" and ordered:
            first = self._turn % len(ordered)
            self._turn += 1
            ordered = ordered[first:] + ordered[:first]
        if self._policy == "nearest" and client.coordinate is not None:
            here = client.coordinate
            ordered.sort(key=lambda site: round_trip_ms(here, coordinates[site]) if site in coordinates else 1e9)
        if planned in ordered:
            ordered.remove(planned)
            ordered.insert(0, planned)
        ordered.sort(key=lambda site: site in client.tried)
        return ordered[:_OFFERED]
