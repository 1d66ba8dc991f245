"""RELOC (Algorithm 1 of the paper), and what the paper compares it with: random (RA), nearest (NS) and
one topic, one site (OTOS)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError
from nearcast.placement.homes.delay import HomesPlan, evaluate
from nearcast.placement.homes.relations import strongest_relations
from nearcast.placement.homes.sequential_placement import SiteUsage, place_sequentially
from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.homes.problem import HomesProblem
    from nearcast.placement.homes.relations import Relations
    from nearcast.placement.progress import Advance

__all__ = [
    "RelocParameters",
    "RelocSteps",
    "cluster_sites",
    "nearest",
    "one_topic_one_site",
    "random",
    "reloc",
    "reloc_steps",
]


def random(problem: HomesProblem, seed: int = 0) -> HomesPlan:
    """RA: any site, with equal chances."""
    return evaluate(problem, np.random.default_rng(seed).integers(problem.sites, size=problem.clients))


def nearest(problem: HomesProblem) -> HomesPlan:
    """NS: the site with the smallest d^H: the smallest Y1 there is, and the first to overflow."""
    return evaluate(problem, problem.client_site_ms.argmin(axis=1))


def one_topic_one_site(problem: HomesProblem) -> HomesPlan:
    """OTOS: the clients of a topic share one site, so its spool is held once.

    The paper leaves the site open: here it is the one nearest to the topic's members in sum among those the
    topic still fits, or the least used one when it fits nowhere. A client of several topics stays where its
    first topic is; cooperation, over all sites, moves clients of overfull ones.
    """
    members, publications = problem.members, problem.publications
    sum_ms = members @ problem.client_site_ms
    nearest_first = np.argsort(sum_ms, axis=1, kind="stable")
    publishers = np.diff(publications.indptr)
    site_of_topic = np.full(problem.topics, -1)

    def choose(topic: int, client: int, home: list[int], usage: SiteUsage) -> int:
        if site_of_topic[topic] < 0:
            size = problem.spool_size[topic] if publishers[topic] else 0.0
            storage = np.asarray(usage.storage) + size <= problem.storage
            compute = np.asarray(usage.compute) + size * publishers[topic] <= problem.compute
            fitting = (storage & compute)[nearest_first[topic]]
            site_of_topic[topic] = (
                nearest_first[topic][fitting.argmax()] if fitting.any() else int(np.argmin(usage.fill))
            )
        return int(site_of_topic[topic])

    everywhere = [range(problem.sites)] * problem.sites
    home = place_sequentially(problem, choose, everywhere)
    return evaluate(problem, np.where(home < 0, problem.client_site_ms.argmin(axis=1), home))


@dataclass(frozen=True)
class RelocParameters:
    """K is `clusters` (None: chosen by trying), M' `relations`, the rank of the factorisation `rank`.

    Topics with more members than `relation_topic_limit` are left out of the relations: a topic of nearly
    all clients does not distinguish them, and its pairs grow with the square of its members.

    `leave_cluster`: a client that fits nowhere in its cluster goes to the nearest site of another one that has room.
    Without it, as in the paper, sites of a full cluster end above their limits.
    """

    clusters: int | None = None
    relations: int = 100
    rank: int = 16
    relation_topic_limit: int = 1000
    leave_cluster: bool = True
    seed: int = 0


DEFAULTS = RelocParameters()


@dataclass(frozen=True, eq=False)
class RelocSteps:
    """The three steps, each with the homes it alone would give; `cooperation` is RELOC's result."""

    clusters: int
    site_cluster: Ints
    locality: HomesPlan
    relation: HomesPlan
    cooperation: HomesPlan


def reloc(
    problem: HomesProblem,
    parameters: RelocParameters = DEFAULTS,
    advance: Advance = no_progress,
    relations: Relations | None = None,
) -> HomesPlan:
    """The homes of Algorithm 1; without a number of clusters, the best of several (`_best_of_clusters`).

    relations: made already, for example by a cluster.
    """
    if relations is None:
        relations = _relations(problem, parameters)
    if parameters.clusters is None:
        return _best_of_clusters(problem, relations, parameters, advance)
    return _place(problem, relations, _checked_clusters(problem, parameters), parameters.leave_cluster, cooperate=True)


def reloc_steps(problem: HomesProblem, parameters: RelocParameters) -> RelocSteps:
    """RELOC with a given K, step by step."""
    if parameters.clusters is None:
        raise InputError("the steps of RELOC need a number of clusters")
    site_cluster = _checked_clusters(problem, parameters)
    relations = _relations(problem, parameters)
    return RelocSteps(
        parameters.clusters,
        site_cluster,
        evaluate(problem, problem.client_site_ms.argmin(axis=1)),
        _place(problem, relations, site_cluster, parameters.leave_cluster, cooperate=False),
        _place(problem, relations, site_cluster, parameters.leave_cluster, cooperate=True),
    )


def cluster_sites(site_site_ms: Floats, clusters: int, seed: int = 0) -> Ints:
    """Line 17: K-means over the sites, for any matrix of delays.

    K-means needs points. Classical scaling makes them from the delays; where the delays are distances in the
    plane these are the sites' own positions, turned.
    """
    from sklearn.cluster import KMeans

    sites = len(site_site_ms)
    if clusters in (1, sites):
        return np.arange(sites) % clusters
    squared = ((site_site_ms + site_site_ms.T) / 2) ** 2
    inner = -(squared - squared.mean(axis=0) - squared.mean(axis=1)[:, None] + squared.mean()) / 2
    values, vectors = np.linalg.eigh(inner)
    points = vectors * np.sqrt(np.maximum(values, 0.0))
    distinct = len(np.unique(points.round(9), axis=0))
    model = KMeans(min(clusters, distinct), n_init=4, random_state=seed).fit(points)
    return np.asarray(model.labels_, dtype=np.int64)


def _place(
    problem: HomesProblem, relations: Relations, site_cluster: Ints, leave_cluster: bool, *, cooperate: bool
) -> HomesPlan:
    nearest = problem.client_site_ms.argmin(axis=1)
    if len(np.unique(site_cluster)) == problem.sites:  # one site per cluster leaves nothing to choose
        return evaluate(problem, nearest)
    cluster_of_site: list[int] = site_cluster.tolist()
    # A client belongs to the cluster of its nearest site: "the closest cluster" for any matrix of delays.
    cluster_of_client: list[int] = site_cluster[nearest].tolist()
    sites_of_cluster: list[list[int]] = [
        np.flatnonzero(site_cluster == k).tolist() for k in range(site_cluster.max() + 1)
    ]
    strongest: list[int] = relations.clients.tolist()
    start: list[int] = relations.start.tolist()

    def choose(_topic: int, client: int, home: list[int], usage: SiteUsage) -> int:
        cluster = cluster_of_client[client]
        for related in strongest[start[client] : start[client + 1]]:  # lines 24 to 31
            site = home[related]
            if site >= 0 and cluster_of_site[site] == cluster and usage.has_room(site):
                return site
        # Line 23, the initial value: the nearest site with room, or the least used when none has any.
        sites = sites_of_cluster[cluster]
        if open_sites := [site for site in sites if usage.has_room(site)]:
            return open_sites[int(problem.client_site_ms[client, open_sites].argmin())]
        return min(sites, key=usage.fill.__getitem__)

    neighbours = [sites_of_cluster[cluster] for cluster in cluster_of_site]
    nearest_first = np.argsort(problem.client_site_ms, axis=1, kind="stable") if leave_cluster else None
    farther = None if nearest_first is None else lambda client: nearest_first[client].tolist()
    home = place_sequentially(problem, choose, neighbours, cooperate=cooperate, farther=farther)
    return evaluate(problem, np.where(home < 0, nearest, home))


def _relations(problem: HomesProblem, parameters: RelocParameters) -> Relations:
    return strongest_relations(
        problem.members, parameters.relations, parameters.rank, parameters.relation_topic_limit, parameters.seed
    )


def _checked_clusters(problem: HomesProblem, parameters: RelocParameters) -> Ints:
    clusters = parameters.clusters or 0
    if not 1 <= clusters <= problem.sites:
        raise InputError(f"{parameters.clusters} clusters of {problem.sites} sites: 1 to {problem.sites} are possible")
    return cluster_sites(problem.site_site_ms, clusters, parameters.seed)


def _best_of_clusters(
    problem: HomesProblem, relations: Relations, parameters: RelocParameters, advance: Advance
) -> HomesPlan:
    """Try K = 1, 4, 16, … and one cluster per site, then half-way (by factor) next to the best.

    One cluster per site is `nearest`: the result is never worse than that.
    """
    counts = [4**power for power in range(problem.sites) if 4**power < problem.sites] + [problem.sites]
    tried: dict[int, HomesPlan] = {}

    def attempt(clusters: int) -> None:
        site_cluster = cluster_sites(problem.site_site_ms, clusters, parameters.seed)
        tried[clusters] = _place(problem, relations, site_cluster, parameters.leave_cluster, cooperate=True)
        advance(len(tried) / (len(counts) + 2))

    for clusters in counts:
        attempt(clusters)
    best = min(counts, key=lambda clusters: tried[clusters].delay_ms)
    around = counts[max(counts.index(best) - 1, 0) : counts.index(best) + 2]
    for low, high in pairwise(around):
        if high - low > 1:
            attempt(round((low * high) ** 0.5))
    return min(tried.values(), key=lambda plan: plan.delay_ms)
