"""Sequential placement of clients while the sites fill up: the frame of Algorithm 1 of the paper.

Each step depends on how full the sites are after the one before, so this is a loop over plain lists,
which Python reads much faster than single elements of arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearcast.placement.arrays import Ints
    from nearcast.placement.homes.problem import HomesProblem

__all__ = ["SiteUsage", "place_sequentially"]

# Spool sizes are added and taken away again: a site filled to the brim must not look overfull by rounding.
ROUNDING = 1e-9
# Stands for a limit of 0: whatever is divided by it is infinite, but 0 is 0.
NOTHING = 5e-324


class SiteUsage:
    """What every site manages so far: the sets T_l and C^P_{n,l} as counts, and the usage they make.

    `fill` is the larger of storage / A_l and compute / B_l; θ_l = 1 as long as it is at most 1.
    """

    def __init__(self, problem: HomesProblem) -> None:
        self.sites = problem.sites
        self.spool_size: list[float] = problem.spool_size.tolist()
        self.storage_limit: list[float] = np.maximum(problem.storage, NOTHING).tolist()
        self.compute_limit: list[float] = np.maximum(problem.compute, NOTHING).tolist()
        self.storage = [0.0] * problem.sites
        self.compute = [0.0] * problem.sites
        self.fill = [0.0] * problem.sites
        self.publishers: dict[int, int] = {}  # topic * sites + site -> how many publish there
        self.registered: set[int] = set()  # client * topics + topic
        self.topics = problem.topics

    def has_room(self, site: int) -> bool:
        return self.fill[site] <= 1.0 + ROUNDING

    def fits(self, topics: Sequence[int], site: int) -> bool:
        """Whether the site stays within its limits with one publisher more of each of these topics."""
        storage, compute = self.storage[site], self.compute[site]
        for topic in topics:
            size = self.spool_size[topic]
            compute += size
            if not self.publishers.get(topic * self.sites + site, 0):
                storage += size
        full = 1.0 + ROUNDING
        return storage <= full * self.storage_limit[site] and compute <= full * self.compute_limit[site]

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
        """Undo `add`; a topic without a publisher at the site is no longer managed there."""
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
        self.fill[site] = by_storage if by_storage > by_compute else by_compute


def place_sequentially(
    problem: HomesProblem,
    choose: Callable[[int, int, list[int], SiteUsage], int],
    neighbours: Sequence[Sequence[int]],
    *,
    cooperate: bool = True,
    farther: Callable[[int], Sequence[int]] | None = None,
) -> Ints:
    """Lines 20 to 45 of Algorithm 1. A client met before keeps its home; one in no topic gets -1.

    `choose(topic, client, homes so far, usage)` names a site for a client that has none. `neighbours[site]`
    are the sites that may take over its clients: when a publisher overfills its home, it moves, with all its
    topics, to the least used of them. `farther(client)`: sites, nearest first, of which the first with room takes it
    when that one has none; the paper does not leave the cluster, and then sites end above their limits.
    """
    usage = SiteUsage(problem)
    home = [-1] * problem.clients
    members, publications = problem.members, problem.publications
    member_of, member_start = members.indices.tolist(), members.indptr.tolist()
    publishes = publications.T.tocsr()
    topics_of, topics_start = publishes.indices.tolist(), publishes.indptr.tolist()
    for topic in range(problem.topics):
        publishing = set(publications.indices[publications.indptr[topic] : publications.indptr[topic + 1]].tolist())
        for client in member_of[member_start[topic] : member_start[topic + 1]]:
            if home[client] < 0:
                home[client] = choose(topic, client, home, usage)
            if client not in publishing:
                continue
            site = home[client]
            usage.add(client, topic, site)
            if not cooperate or usage.has_room(site):
                continue
            target = min(neighbours[site], key=usage.fill.__getitem__)
            if farther is not None:
                published = topics_of[topics_start[client] : topics_start[client + 1]]
                if target == site or not usage.fits(published, target):
                    target = next((other for other in farther(client) if usage.fits(published, other)), target)
            if target != site:
                home[client] = target
                for moved in topics_of[topics_start[client] : topics_start[client + 1]]:
                    usage.remove(client, moved, site)
                    usage.add(client, moved, target)
    return np.array(home, dtype=np.int64)
