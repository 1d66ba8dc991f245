"""Placing clients one after the other while the sites fill up: the frame of Algorithm 1 of the paper.

Each step depends on how full the sites are after the one before, so this is a loop over plain lists,
which Python reads much faster than single elements of arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from nearcast.placement.homes.instance import HomesInstance

__all__ = ["Ledger", "place_in_order"]

# Spool sizes are added and taken away again: a site filled to the brim must not look overfull by rounding.
ROUNDING = 1e-9
# Stands for a limit of 0: whatever is divided by it is infinite, but 0 is 0.
NOTHING = 5e-324


class Ledger:
    """What every site manages so far: the sets T_l and C^P_{n,l} as counts, and the usage they make.

    `usage` is the larger of storage / A_l and compute / B_l; θ_l = 1 as long as it is at most 1.
    """

    def __init__(self, instance: HomesInstance) -> None:
        self.sites = instance.sites
        self.spool_size: list[float] = instance.spool_size.tolist()
        self.storage_limit: list[float] = np.maximum(instance.storage, NOTHING).tolist()
        self.compute_limit: list[float] = np.maximum(instance.compute, NOTHING).tolist()
        self.storage = [0.0] * instance.sites
        self.compute = [0.0] * instance.sites
        self.usage = [0.0] * instance.sites
        self.publishers: dict[int, int] = {}  # topic * sites + site -> how many publish there
        self.registered: set[int] = set()  # client * topics + topic
        self.topics = instance.topics

    def has_room(self, site: int) -> bool:
        return self.usage[site] <= 1.0 + ROUNDING

    def add(self, client: int, topic: int, site: int) -> None:
        """Register a publisher of a topic at a site, once."""
        if (key := client * self.topics + topic) in self.registered:
            return
        self.registered.add(key)
        place, size = topic * self.sites + site, self.spool_size[topic]
        count = self.publishers.get(place, 0)
        self.publishers[place] = count + 1
        self._use(site, 0.0 if count else size, size)

    def remove(self, client: int, topic: int, site: int) -> None:
        """Undo `add`; a topic that nobody publishes at the site any more is not managed there any more."""
        if (key := client * self.topics + topic) not in self.registered:
            return
        self.registered.remove(key)
        place, size = topic * self.sites + site, self.spool_size[topic]
        count = self.publishers[place] = self.publishers[place] - 1
        self._use(site, 0.0 if count else -size, -size)

    def _use(self, site: int, storage: float, compute: float) -> None:
        held = self.storage[site] = self.storage[site] + storage
        computed = self.compute[site] = self.compute[site] + compute
        by_storage, by_compute = held / self.storage_limit[site], computed / self.compute_limit[site]
        self.usage[site] = by_storage if by_storage > by_compute else by_compute


def place_in_order(
    instance: HomesInstance,
    choose: Callable[[int, int, list[int], Ledger], int],
    neighbours: Sequence[Sequence[int]],
    *,
    cooperate: bool = True,
) -> NDArray[np.int64]:
    """Lines 20 to 45 of Algorithm 1. A client met before keeps its home; one in no topic gets -1.

    `choose(topic, client, homes so far, ledger)` names a site for a client that has none. `neighbours[site]`
    are the sites that may take over its clients: when a publisher overfills its home, it moves, with all its
    topics, to the least used of them.
    """
    ledger = Ledger(instance)
    home = [-1] * instance.clients
    members, publications = instance.members, instance.publications
    member_of, member_start = members.indices.tolist(), members.indptr.tolist()
    publishes = publications.T.tocsr()
    topics_of, topics_start = publishes.indices.tolist(), publishes.indptr.tolist()
    for topic in range(instance.topics):
        publishing = set(publications.indices[publications.indptr[topic] : publications.indptr[topic + 1]].tolist())
        for client in member_of[member_start[topic] : member_start[topic + 1]]:
            if home[client] < 0:
                home[client] = choose(topic, client, home, ledger)
            if client not in publishing:
                continue
            site = home[client]
            ledger.add(client, topic, site)
            if not cooperate or ledger.has_room(site):
                continue
            target = min(neighbours[site], key=ledger.usage.__getitem__)
            if target != site:
                home[client] = target
                for moved in topics_of[topics_start[client] : topics_start[client + 1]]:
                    ledger.remove(client, moved, site)
                    ledger.add(client, moved, target)
    return np.array(home, dtype=np.int64)
