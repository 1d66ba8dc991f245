"""The home of a client that registers: a policy per deployment, and the next best sites behind it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinates import round_trip_ms

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinates import Coordinate
    from nearcast.coordinator.model import Model
    from nearcast.placement.homes import HomesProblem
    from nearcast.protocol.registration import ClientRecord

__all__ = ["HomePolicy", "homes_instance", "reloc_homes"]

_OFFERED = 5


class HomePolicy:
    """Nearest by coordinate, round robin, random, or RELOC's plan; sites the client could not reach come last.

    plan: client -> home, RELOC's last word. A client that is not in it goes to the nearest site.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._policy = settings.homes
        self._turn = 0
        self._random = random.Random(settings.seed)
        self.plan: dict[str, str] = {}

    def homes(
        self, client: ClientRecord, sites: Collection[str], coordinates: Mapping[str, Coordinate], known: str = ""
    ) -> list[str]:
        """Sites for a client, best first. `known`: where it is or was, which it need not leave."""
        ordered = sorted(sites)
        if self._policy == "random":
            self._random.shuffle(ordered)
        elif self._policy == "round_robin" and ordered:
            first = self._turn % len(ordered)
            self._turn += 1
            ordered = ordered[first:] + ordered[:first]
        elif client.coordinate is not None:
            here = client.coordinate
            ordered.sort(key=lambda site: round_trip_ms(here, coordinates[site]) if site in coordinates else 1e9)
        for preferred in (known, self.plan.get(client.name, "")):
            if preferred in ordered:
                ordered.remove(preferred)
                ordered.insert(0, preferred)
        ordered.sort(key=lambda site: site in client.tried)
        return ordered[:_OFFERED]


def homes_instance(
    model: Model, live: NDArray[np.int64], topics: NDArray[np.int64]
) -> tuple[NDArray[np.int64], HomesProblem]:
    """These topics and their clients as RELOC sees them: the clients' rows, and all delays, one way.

    What sites can hold is the capacity goal's concern: here they have room for all.
    """
    from nearcast.placement.homes import HomesProblem, membership

    clients = model.clients
    pairs = np.isin(clients.pair_topic, topics) & clients.placed[clients.pair_client]
    rows, client = np.unique(clients.pair_client[pairs], return_inverse=True)
    topic = np.searchsorted(topics, clients.pair_topic[pairs])
    shape = (len(topics), len(rows))
    publishes, subscribes = clients.publishes[pairs], clients.subscribes[pairs]
    plenty = np.full(len(live), 1e9)
    return rows, HomesProblem(
        model.client_distances(rows)[:, live] / 2,
        model.distances()[np.ix_(live, live)] / 2,
        0.0,
        plenty,
        plenty,
        np.ones(len(topics)),
        membership(topic[publishes], client[publishes], shape),
        membership(topic[subscribes], client[subscribes], shape),
    )


def reloc_homes(model: Model, seed: int) -> dict[str, str]:
    """RELOC's home of every client that takes part in a topic and whose place is known."""
    from nearcast.placement.homes import RelocParameters, reloc

    live = np.flatnonzero(model.sites.alive & model.sites.placed)
    rows, instance = homes_instance(model, live, np.arange(len(model.topics.names)))
    if not len(rows) or not len(live):
        return {}
    plan = reloc(instance, RelocParameters(seed=seed))
    names = model.sites.names
    return {model.clients.names[row]: names[live[home]] for row, home in zip(rows, plan.home, strict=True)}
