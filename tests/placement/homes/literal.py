"""The paper word for word, in plain Python: slow, and what the library is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.placement.homes import nearest
from nearcast.placement.homes.incremental_delay import IncrementalDelay

if TYPE_CHECKING:
    from nearcast.placement.arrays import Ints
    from nearcast.placement.homes import HomesProblem

FULL = 1 - 1e-9  # θ = 1, but for rounding


def literal_delay(problem: HomesProblem, home: list[int]) -> dict[str, Any]:
    """Eq. 1 to 9 with one loop per sum (8 and 9 divided by I once, as Y = Y1 + Y2 needs)."""
    publications, subscriptions = pairs(problem.publications), pairs(problem.subscriptions)
    sites = range(problem.sites)
    publishers_at = {site: [(n, m) for (n, m) in publications if home[m] == site] for site in sites}
    storage = [sum(problem.spool_size[n] for n in {n for n, _ in publishers_at[site]}) for site in sites]
    compute = [sum(problem.spool_size[n] for n, _ in publishers_at[site]) for site in sites]  # Eq. 1
    theta = [literal_theta(problem, site, storage[site], compute[site]) for site in sites]
    count = distance = resource = 0.0
    for (n, m), weight in publications.items():
        audience = {c: w for (topic, c), w in subscriptions.items() if topic == n and c != m}
        if not sum(audience.values()):
            continue
        count += weight
        for other, share in audience.items():
            part = weight * share / sum(audience.values())
            here, there = home[m], home[other]
            distance += part * (problem.client_site_ms[m, here] + problem.client_site_ms[other, there])
            resource += part * 2 * problem.cloud_ms * (1 - theta[here])
            resource += part * theta[here] * problem.site_site_ms[here, there]
    y1, y2 = (distance / count, resource / count) if count else (0.0, 0.0)
    return {"y": y1 + y2, "y1": y1, "y2": y2, "storage": storage, "compute": compute, "theta": theta}


def literal_theta(problem: HomesProblem, site: int, storage: float, compute: float) -> float:
    """Eq. 2."""
    by_storage = problem.storage[site] / storage if storage > 0 else 1.0
    by_compute = problem.compute[site] / compute if compute > 0 else 1.0
    return min(by_storage, by_compute, 1.0)


def pairs(matrix: Any) -> dict[tuple[int, int], float]:
    return {
        (n, int(matrix.indices[at])): float(matrix.data[at])
        for n in range(matrix.shape[0])
        for at in range(matrix.indptr[n], matrix.indptr[n + 1])
    }


class LiteralReloc:
    """Algorithm 1 with its sets as sets. Clusters (line 17) and the factors of Z (line 19) are given."""

    def __init__(
        self, problem: HomesProblem, site_cluster: list[int], factors: list[list[float]], relations: int
    ) -> None:
        self.sites = range(problem.sites)
        self.delay = problem.client_site_ms.tolist()
        self.spool = problem.spool_size.tolist()
        self.storage_limit = problem.storage.tolist()
        self.compute_limit = problem.compute.tolist()
        self.publishers = [{m for n, m in pairs(problem.publications) if n == topic} for topic in range(problem.topics)]
        members = set(pairs(problem.publications)) | set(pairs(problem.subscriptions))
        self.members = [sorted(m for n, m in members if n == topic) for topic in range(problem.topics)]
        self.site_cluster = site_cluster
        self.client_cluster = [site_cluster[row.index(min(row))] for row in self.delay]
        self.factors = factors
        self.relations = relations
        self.home: list[int | None] = [None] * problem.clients
        self.managed: list[set[int]] = [set() for _ in self.sites]  # T_l
        self.local: dict[tuple[int, int], set[int]] = {}  # C^P_{n,l}

    def usage(self, site: int) -> float:
        storage = sum(self.spool[n] for n in self.managed[site])
        compute = sum(self.spool[n] * len(self.local[n, site]) for n in self.managed[site])
        ratios = []
        for used, limit in ((storage, self.storage_limit[site]), (compute, self.compute_limit[site])):
            ratios.append(used / limit if limit > 0 else (float("inf") if used > 0 else 0.0))
        return max(ratios)

    def theta(self, site: int) -> float:
        return 1.0 if self.usage(site) <= 1 else 1 / self.usage(site)

    def strongest(self, client: int) -> list[int]:
        """Line 22: by the product of the factors, among clients of a common topic."""
        related = {m for members in self.members if client in members for m in members if m != client}
        strength = {}
        for other in related:
            strength[other] = 0.0
            for mine, theirs in zip(self.factors[client], self.factors[other], strict=True):
                strength[other] += mine * theirs
        return sorted(related, key=lambda other: (-strength[other], other))[: self.relations]

    def cooperation(self, client: int, previous: int, site: int, topics: list[int]) -> None:
        """Lines 1 to 14: from `previous` to `site`."""
        for topic in topics:
            self.managed[site].add(topic)
            self.local.setdefault((topic, site), set()).add(client)
            self.local.setdefault((topic, previous), set()).discard(client)
        for topic in topics:
            if not self.local[topic, previous]:
                self.managed[previous].discard(topic)

    def run(self, *, cooperate: bool = True) -> list[int | None]:
        """Lines 20 to 45. A client met in an earlier topic has its home already."""
        for topic, members in enumerate(self.members):
            for client in members:
                cluster = [site for site in self.sites if self.site_cluster[site] == self.client_cluster[client]]
                if self.home[client] is None:
                    self.home[client] = self.first_home(client, cluster)
                site = self.home[client]
                assert site is not None
                if client in self.publishers[topic]:
                    self.managed[site].add(topic)
                    self.local.setdefault((topic, site), set()).add(client)
                    if self.theta(site) < FULL and cooperate:
                        target = min(cluster, key=self.usage)
                        if target != site:
                            self.home[client] = target
                            topics = [n for n, publishers in enumerate(self.publishers) if client in publishers]
                            self.cooperation(client, site, target, topics)
        return self.home

    def first_home(self, client: int, cluster: list[int]) -> int:
        """Lines 22 to 31."""
        for related in self.strongest(client):
            site = self.home[related]
            if site is not None and site in cluster and self.theta(site) >= FULL:
                return site
        with_room = [site for site in cluster if self.theta(site) >= FULL]
        if with_room:
            return min(with_room, key=lambda site: (self.delay[client][site], site))
        return min(cluster, key=self.usage)


def literal_relation_matrix(problem: HomesProblem) -> list[list[float]]:
    """Line 18: Z, every pair of clients of every topic."""
    z = [[0.0] * problem.clients for _ in range(problem.clients)]
    members = set(pairs(problem.publications)) | set(pairs(problem.subscriptions))
    for topic in range(problem.topics):
        of_topic = [m for n, m in members if n == topic]
        for one in of_topic:
            for other in of_topic:
                z[one][other] += 1
    return z


def literal_factors(z: list[list[float]], rank: int, iterations: int) -> list[list[float]]:
    """Line 19: factors whose products approximate Z, by orthogonal iteration."""
    size = len(z)
    state = 1
    columns = []
    for _ in range(min(rank, size)):
        column = []
        for _ in range(size):
            state = (state * 1103515245 + 12345) % 2**31
            column.append(state / 2**31 - 0.5)
        columns.append(column)
    lengths = [1.0] * len(columns)
    for _ in range(iterations):
        columns = [[sum(a * b for a, b in zip(row, c, strict=True)) for row in z] for c in columns]
        for i, column in enumerate(columns):
            for earlier in columns[:i]:
                along = sum(a * b for a, b in zip(column, earlier, strict=True))
                column[:] = [a - along * b for a, b in zip(column, earlier, strict=True)]
            lengths[i] = sum(a * a for a in column) ** 0.5
            column[:] = [a / (lengths[i] or 1.0) for a in column]
    return [[c[m] * length**0.5 for c, length in zip(columns, lengths, strict=True)] for m in range(size)]


def annealed(problem: HomesProblem, evaluations: int, rng: np.random.Generator) -> Ints:
    """Plain simulated annealing (Metropolis) from the nearest sites: one random move at a time; the best homes seen."""
    homes = IncrementalDelay(problem, nearest(problem).home)
    change, _ = homes.move_changes(np.arange(problem.clients))
    warm = float(np.median(change[change > 0], axis=None))
    best, least = homes.home.copy(), homes.total_ms()
    total = least
    for number in range(evaluations):
        temperature = warm * 1000.0 ** (-number / evaluations)
        client, site = int(rng.integers(problem.clients)), int(rng.integers(problem.sites))
        old = int(homes.home[client])
        homes.move(client, site)
        after = homes.total_ms()
        if after <= total or rng.random() < np.exp((total - after) / temperature):
            total = after
            if total < least:
                best, least = homes.home.copy(), total
        else:
            homes.move(client, old)
    return best
