"""The home of a client that registers, by the policy in the settings, and the next best sites."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinates import round_trip_ms
from nearcast.coordinator.model.problems import homes_problem

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinates import Coordinate
    from nearcast.coordinator.model import Model
    from nearcast.protocol.registration import ClientRecord

__all__ = ["HomePolicy", "reloc_homes"]

_OFFERED = 5
_DEPARTED_KEPT = 10_000


class HomePolicy:
    """Nearest (measured or by coordinate), round robin, random, or RELOC's plan. Sites it could not reach come last.

    plan: client -> home, by RELOC. A client that is not in it goes to the nearest site.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._turn = 0
        self._random = random.Random(settings.seed)
        self.plan: dict[str, str] = {}
        self._planned_version = -1  # of the registry's clients
        self._planned_at = float("-inf")

    def homes(
        self, client: ClientRecord, sites: Collection[str], coordinates: Mapping[str, Coordinate], last_home: str = ""
    ) -> list[str]:
        """Sites for a client, best first. last_home: its present or last one, which it keeps if possible."""
        policy, ordered = self._settings.homes, sorted(sites)
        if policy == "random":
            self._random.shuffle(ordered)
        elif policy == "round_robin" and ordered:
            first = self._turn % len(ordered)
            self._turn += 1
            ordered = ordered[first:] + ordered[:first]
        else:
            ordered.sort(key=lambda site: _round_trip(client, site, coordinates))
        for preferred in (last_home, self.plan.get(client.name, "")):
            if preferred in ordered:
                ordered.remove(preferred)
                ordered.insert(0, preferred)
        ordered.sort(key=lambda site: site in client.tried)
        return ordered[:_OFFERED]

    async def update_plan(self, model: Model, version: int, now: float) -> None:
        """Make RELOC's plan again when clients have changed, at most once per cool-down."""
        settings = self._settings
        if settings.homes != "reloc" or version == self._planned_version:
            return
        if now - self._planned_at < settings.cool_down:
            return
        self._planned_at = now
        homes = await asyncio.to_thread(reloc_homes, model, settings.seed)
        if homes:  # a new leader has no coordinates of the sites until they have reported
            self._planned_version = version
        # A client that left may register again: its planned home is kept, unless there are too many of them.
        previous = self.plan if len(self.plan) <= 2 * len(homes) + _DEPARTED_KEPT else {}
        self.plan = previous | homes


def _round_trip(client: ClientRecord, site: str, coordinates: Mapping[str, Coordinate]) -> float:
    """Measured by the client, else estimated; the last place for a site that nothing is known of."""
    if site in client.round_trips:
        return client.round_trips[site]
    if client.coordinate is not None and site in coordinates:
        return round_trip_ms(client.coordinate, coordinates[site])
    return float("inf")


def reloc_homes(model: Model, seed: int) -> dict[str, str]:
    """RELOC's home of every client that has topics and a known coordinate."""
    from nearcast.placement.homes import RelocParameters, reloc

    live = np.flatnonzero(model.sites.alive & model.sites.placed)
    if not len(live):
        return {}
    rows, problem = homes_problem(model, live, np.arange(len(model.topics.names)))
    if not len(rows):
        return {}
    plan = reloc(problem, RelocParameters(seed=seed))
    names = model.sites.names
    return {model.clients.names[row]: names[live[home]] for row, home in zip(rows, plan.home, strict=True)}
