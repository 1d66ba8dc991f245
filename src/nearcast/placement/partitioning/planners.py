"""Algorithm 1 of ePulsar over columns, with its policies, and the two baselines it is compared with.

T_migr  topics to migrate        F[t]     candidate sites of a topic, best first
W(t, b) expected latency of topic t at site b
P_0, P  PartitionTopics.site, Partition.site
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

from nearcast.placement.partitioning.problem import NOWHERE, PartitionClients, PartitionSites, PartitionTopics
from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearcast.placement.arrays import Bools, Floats, Ints
    from nearcast.placement.progress import Advance

    # Rows of topics in, W(t, b) of each of them at every site out.
    Expect = Callable[[Ints], Floats]

__all__ = [
    "Partition",
    "all_pairs",
    "by_latencies",
    "centroid",
    "centroid_latencies",
    "current_capacity",
    "described",
    "hashed",
    "pair_latencies",
]

BLOCK = 4096  # topics whose latencies at all sites are held at once
HIGH_WATERMARK = 0.85  # of any resource, as in Pulsar


@dataclass(frozen=True)
class Partition:
    """Where every topic goes."""

    site: Ints  # NOWHERE where a topic had no site and none has room for it
    expected: Floats  # E(t) of a topic that stayed, W(t, b) of one that moved
    load: Floats  # rate per site
    overloaded: Ints  # sites above their limit, because nowhere was room
    moves: int  # topics that had a site and get another


def centroid(topics: PartitionTopics, sites: PartitionSites, advance: Advance = no_progress) -> Partition:
    """Algorithm 1: W(t, b) from the centroids, without knowing a single client."""
    return _repartition(topics, sites, lambda rows: centroid_latencies(topics, sites, rows), advance)


def by_latencies(topics: PartitionTopics, sites: PartitionSites, latencies: Floats) -> Partition:
    """Algorithm 1 with W(t, b) as it was measured: topics × sites."""
    return _repartition(topics, sites, lambda rows: latencies[rows], no_progress)


def all_pairs(
    topics: PartitionTopics, clients: PartitionClients, sites: PartitionSites, advance: Advance = no_progress
) -> Partition:
    """Algorithm 1 with the latency of every producer-consumer pair instead of the centroids' estimate."""
    return _repartition(topics, sites, pair_latencies(topics, clients, sites), advance)


def hashed(topics: PartitionTopics, names: Sequence[str], sites: PartitionSites) -> Partition:
    """Pulsar's way: the range of the hash of a topic's name is split evenly among the sites."""
    hashes = np.fromiter((zlib.crc32(name.encode()) for name in names), np.int64, len(names))
    site = hashes * len(sites) >> 32
    expected = _centroid_latency_at(topics, sites, site)
    return described(topics, sites, site, np.where(site == topics.site, topics.latency, expected))


def centroid_latencies(topics: PartitionTopics, sites: PartitionSites, rows: Ints) -> Floats:
    """W(t, b) = d(N̄C_P(t), NC(b)) + d(N̄C_C(t), NC(b)) + W(t) of some topics at all sites."""
    expected = np.repeat(topics.deviation[rows, None], len(sites), axis=1)
    for centroids in (topics.producer_centroid[rows], topics.consumer_centroid[rows]):
        leg = cdist(centroids, sites.position) + sites.height
        leg[np.isnan(centroids[:, 0])] = 0.0
        expected += leg
    return expected


def pair_latencies(topics: PartitionTopics, clients: PartitionClients, sites: PartitionSites) -> Expect:
    """E(t, b) of some topics at all sites: the worst pair is the farthest producer and consumer."""
    sides = []
    for member in (clients.produces, clients.consumes):
        rows = np.flatnonzero(member)
        rows = rows[np.argsort(clients.topic[rows], kind="stable")]
        sides.append((rows, np.searchsorted(clients.topic[rows], np.arange(len(topics) + 1))))

    def expect(wanted: Ints) -> Floats:
        expected = np.zeros((len(wanted), len(sites)))
        for rows, first in sides:
            size = first[wanted + 1] - first[wanted]
            owner = np.repeat(np.arange(len(wanted)), size)
            member = rows[np.arange(len(owner)) + np.repeat(first[wanted] - np.cumsum(size) + size, size)]
            leg = np.zeros_like(expected)
            for start in range(0, len(owner), BLOCK):
                part, who = owner[start : start + BLOCK], member[start : start + BLOCK]
                away = cdist(clients.position[who], sites.position) + clients.height[who, None]
                groups = np.flatnonzero(np.diff(part, prepend=-1))
                inside = np.maximum.reduceat(away + sites.height, groups)
                leg[part[groups]] = np.maximum(leg[part[groups]], inside)
            expected += leg
        return expected

    return expect


def current_capacity(topics: PartitionTopics, sites: PartitionSites) -> Floats:
    """The rate above which each site is overloaded: R_out^th, or less when a resource runs out before.

    Resources are taken to grow with the rate, so one at 70 % now reaches 85 % at 85/70 of the rate.
    """
    if sites.utilisation.size == 0:
        return sites.rate_limit
    load, peak = _load(topics, topics.site, len(sites)), sites.utilisation.max(axis=1)
    growth = np.divide(HIGH_WATERMARK, peak, out=np.full(len(peak), np.inf), where=peak > 0)
    idle = np.where(growth < 1, 0.0, np.inf)
    by_resource = np.multiply(load, growth, out=idle, where=load > 0)
    return np.asarray(np.minimum(sites.rate_limit, by_resource))


def _repartition(topics: PartitionTopics, sites: PartitionSites, expect: Expect, advance: Advance) -> Partition:
    """PerformRepartitioning, lines 12-27."""
    load, capacity = _load(topics, topics.site, len(sites)), current_capacity(topics, sites)
    migrating = (topics.latency > topics.bound) | (topics.site == NOWHERE)  # lines 15-17
    migrating |= _relieving(topics, load, capacity)  # lines 18-21
    site, expected = topics.site.copy(), topics.latency.copy()
    _place(topics, np.flatnonzero(migrating), expect, load, capacity, site, expected, advance)
    return described(topics, sites, site, expected)


def _relieving(topics: PartitionTopics, load: Floats, capacity: Floats) -> Bools:
    """The topics to take from overloaded sites: largest rate first, until the rest fits."""
    marked = np.zeros(len(topics), dtype=bool)
    rows = np.flatnonzero((topics.site != NOWHERE) & (load > capacity)[topics.site])
    if rows.size:
        rows = rows[np.lexsort((-topics.rate[rows], topics.site[rows]))]
        host, before = topics.site[rows], np.cumsum(topics.rate[rows]) - topics.rate[rows]
        groups = np.flatnonzero(np.diff(host, prepend=-1))
        before -= np.repeat(before[groups], np.diff(groups, append=len(rows)))
        marked[rows] = load[host] - before > capacity[host]
    return marked


def _place(
    topics: PartitionTopics,
    rows: Ints,
    expect: Expect,
    load: Floats,
    capacity: Floats,
    site: Ints,
    expected: Floats,
    advance: Advance,
) -> None:
    """PlaceTopics, lines 1-11: fills in `site` and `expected`, keeps `load` up to date.

    Latencies are computed twice, to count candidates and to rank them, so that only a block of topics is ever
    held at all sites at once.
    """
    candidates = np.empty(len(rows), dtype=np.int64)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        feasible = (expect(block) <= topics.bound[block, None]).sum(axis=1)
        candidates[start : start + BLOCK] = np.where(feasible > 0, feasible, len(load))
        advance(0.5 * start / len(rows))
    rows = rows[np.argsort(candidates, kind="stable")]  # line 5
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        latencies = expect(block)
        infeasible = latencies > topics.bound[block, None]
        shut = infeasible & ~infeasible.all(axis=1, keepdims=True)
        ranked = np.where(shut, np.inf, latencies)  # line 4: F[t]; all sites when none is feasible
        for i, (row, best) in enumerate(zip(block.tolist(), ranked.argmin(axis=1).tolist(), strict=True)):
            rate, host = topics.rate[row], int(site[row])
            if host != NOWHERE:
                load[host] -= rate
            if load[best] + rate > capacity[best]:  # lines 7-8: the first choice is full, take the next
                best = _nearest_with_room(ranked[i], load + rate <= capacity)
            if best == host == NOWHERE:  # a new topic would rather break its bound than have no site
                best = _nearest_with_room(latencies[i], load + rate <= capacity)
            if best not in (host, NOWHERE):
                site[row], expected[row] = best, latencies[i, best]
            if site[row] != NOWHERE:
                load[site[row]] += rate
        advance(0.5 + 0.5 * start / len(rows))


def _nearest_with_room(latencies: Floats, room: Bools) -> int:
    ranked = np.where(room, latencies, np.inf)
    best = int(ranked.argmin())
    return best if np.isfinite(ranked[best]) else NOWHERE


def _load(topics: PartitionTopics, site: Ints, sites: int) -> Floats:
    placed = site != NOWHERE
    return np.bincount(site[placed], topics.rate[placed], sites).astype(float)


def _centroid_latency_at(topics: PartitionTopics, sites: PartitionSites, site: Ints) -> Floats:
    legs = [
        np.linalg.norm(centroids - sites.position[site], axis=1) + sites.height[site]
        for centroids in (topics.producer_centroid, topics.consumer_centroid)
    ]
    return np.asarray(topics.deviation + np.nan_to_num(legs).sum(axis=0))


def described(topics: PartitionTopics, sites: PartitionSites, site: Ints, expected: Floats) -> Partition:
    """An assignment with its load, overloaded sites and moves."""
    load = _load(topics, site, len(sites))
    capacity = current_capacity(topics, sites)
    moves = int(np.count_nonzero((site != topics.site) & (topics.site != NOWHERE)))
    return Partition(site, expected, load, np.flatnonzero(load > capacity), moves)
