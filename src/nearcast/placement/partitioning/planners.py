"""Algorithm 1 of ePulsar over columns, with its policies, and the two baselines it is compared with.

T_migr  topics to migrate        F[t]     candidate brokers of a topic, best first
W(t, b) expected latency of topic t at broker b
P_0, P  Topics.broker, Partition.broker
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

from nearcast.placement.partitioning.aggregates import NOWHERE, Brokers, Clients, Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    # Rows of topics in, W(t, b) of each of them at every broker out.
    Expect = Callable[[NDArray[np.int64]], NDArray[np.float64]]
    Advance = Callable[[float], None]

__all__ = [
    "Partition",
    "all_pairs",
    "centroid",
    "centroid_latencies",
    "current_capacity",
    "described",
    "hashed",
    "pair_latencies",
]

BLOCK = 4096  # topics whose latencies at all brokers are held at once
HIGH_WATERMARK = 0.85  # of any resource, as in Pulsar


def _silent(fraction: float) -> None:
    """Nobody watches the progress."""


@dataclass(frozen=True)
class Partition:
    """Where every topic goes."""

    broker: NDArray[np.int64]  # NOWHERE where a topic had no broker and none has room for it
    expected: NDArray[np.float64]  # E(t) of a topic that stayed, W(t, b) of one that moved
    load: NDArray[np.float64]  # rate per broker
    overloaded: NDArray[np.int64]  # brokers above their limit, because nowhere was room
    moves: int  # topics that had a broker and get another


def centroid(topics: Topics, brokers: Brokers, advance: Advance = _silent) -> Partition:
    """Algorithm 1: W(t, b) from the centroids, without knowing a single client."""
    return _repartition(topics, brokers, lambda rows: centroid_latencies(topics, brokers, rows), advance)


def all_pairs(topics: Topics, clients: Clients, brokers: Brokers, advance: Advance = _silent) -> Partition:
    """Algorithm 1 with the latency of every producer-consumer pair instead of the centroids' estimate."""
    return _repartition(topics, brokers, pair_latencies(topics, clients, brokers), advance)


def hashed(topics: Topics, names: Sequence[str], brokers: Brokers) -> Partition:
    """Pulsar's way: the range of the hash of a topic's name is split evenly among the brokers."""
    hashes = np.fromiter((zlib.crc32(name.encode()) for name in names), np.int64, len(names))
    broker = hashes * len(brokers) >> 32
    expected = _centroid_latency_at(topics, brokers, broker)
    return described(topics, brokers, broker, np.where(broker == topics.broker, topics.latency, expected))


def centroid_latencies(topics: Topics, brokers: Brokers, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """W(t, b) = d(N̄C_P(t), NC(b)) + d(N̄C_C(t), NC(b)) + W(t) of some topics at all brokers."""
    expected = np.repeat(topics.deviation[rows, None], len(brokers), axis=1)
    for centroids in (topics.producer_centroid[rows], topics.consumer_centroid[rows]):
        leg = cdist(centroids, brokers.position) + brokers.height
        leg[np.isnan(centroids[:, 0])] = 0.0
        expected += leg
    return expected


def pair_latencies(topics: Topics, clients: Clients, brokers: Brokers) -> Expect:
    """E(t, b) of some topics at all brokers: the worst pair is the farthest producer and consumer."""
    sides = []
    for member in (clients.produces, clients.consumes):
        rows = np.flatnonzero(member)
        rows = rows[np.argsort(clients.topic[rows], kind="stable")]
        sides.append((rows, np.searchsorted(clients.topic[rows], np.arange(len(topics) + 1))))

    def expect(wanted: NDArray[np.int64]) -> NDArray[np.float64]:
        expected = np.zeros((len(wanted), len(brokers)))
        for rows, first in sides:
            size = first[wanted + 1] - first[wanted]
            owner = np.repeat(np.arange(len(wanted)), size)
            member = rows[np.arange(len(owner)) + np.repeat(first[wanted] - np.cumsum(size) + size, size)]
            leg = np.zeros_like(expected)
            for start in range(0, len(owner), BLOCK):
                part, who = owner[start : start + BLOCK], member[start : start + BLOCK]
                away = cdist(clients.position[who], brokers.position) + clients.height[who, None]
                groups = np.flatnonzero(np.diff(part, prepend=-1))
                inside = np.maximum.reduceat(away + brokers.height, groups)
                leg[part[groups]] = np.maximum(leg[part[groups]], inside)
            expected += leg
        return expected

    return expect


def current_capacity(topics: Topics, brokers: Brokers) -> NDArray[np.float64]:
    """The rate above which each broker is overloaded: R_out^th, or less when a resource runs out before.

    Resources are taken to grow with the rate, so one at 70 % now reaches 85 % at 85/70 of the rate.
    """
    if brokers.utilisation.size == 0:
        return brokers.rate_limit
    load, peak = _load(topics, topics.broker, len(brokers)), brokers.utilisation.max(axis=1)
    growth = np.divide(HIGH_WATERMARK, peak, out=np.full(len(peak), np.inf), where=peak > 0)
    idle = np.where(growth < 1, 0.0, np.inf)
    by_resource = np.multiply(load, growth, out=idle, where=load > 0)
    return np.asarray(np.minimum(brokers.rate_limit, by_resource))


def _repartition(topics: Topics, brokers: Brokers, expect: Expect, advance: Advance) -> Partition:
    """PerformRepartitioning, lines 12-27."""
    load, capacity = _load(topics, topics.broker, len(brokers)), current_capacity(topics, brokers)
    migrating = (topics.latency > topics.bound) | (topics.broker == NOWHERE)  # lines 15-17
    migrating |= _relieving(topics, load, capacity)  # lines 18-21
    broker, expected = topics.broker.copy(), topics.latency.copy()
    _place(topics, np.flatnonzero(migrating), expect, load, capacity, broker, expected, advance)
    return described(topics, brokers, broker, expected)


def _relieving(topics: Topics, load: NDArray[np.float64], capacity: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The topics to take from overloaded brokers: largest rate first, until the rest fits."""
    marked = np.zeros(len(topics), dtype=bool)
    rows = np.flatnonzero((topics.broker != NOWHERE) & (load > capacity)[topics.broker])
    if rows.size:
        rows = rows[np.lexsort((-topics.rate[rows], topics.broker[rows]))]
        host, before = topics.broker[rows], np.cumsum(topics.rate[rows]) - topics.rate[rows]
        groups = np.flatnonzero(np.diff(host, prepend=-1))
        before -= np.repeat(before[groups], np.diff(groups, append=len(rows)))
        marked[rows] = load[host] - before > capacity[host]
    return marked


def _place(
    topics: Topics,
    rows: NDArray[np.int64],
    expect: Expect,
    load: NDArray[np.float64],
    capacity: NDArray[np.float64],
    broker: NDArray[np.int64],
    expected: NDArray[np.float64],
    advance: Advance,
) -> None:
    """PlaceTopics, lines 1-11: fills in `broker` and `expected`, keeps `load` up to date.

    Latencies are computed twice, to count candidates and to rank them, so that only a block of topics is ever
    held at all brokers at once.
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
        ranked = np.where(shut, np.inf, latencies)  # line 4: F[t]; all brokers when none is feasible
        for i, (row, best) in enumerate(zip(block.tolist(), ranked.argmin(axis=1).tolist(), strict=True)):
            rate, host = topics.rate[row], int(broker[row])
            if host != NOWHERE:
                load[host] -= rate
            if load[best] + rate > capacity[best]:  # lines 7-8: the first choice is full, take the next
                best = _nearest_with_room(ranked[i], load + rate <= capacity)
            if best == host == NOWHERE:  # a new topic would rather break its bound than have no broker
                best = _nearest_with_room(latencies[i], load + rate <= capacity)
            if best not in (host, NOWHERE):
                broker[row], expected[row] = best, latencies[i, best]
            if broker[row] != NOWHERE:
                load[broker[row]] += rate
        advance(0.5 + 0.5 * start / len(rows))


def _nearest_with_room(latencies: NDArray[np.float64], room: NDArray[np.bool_]) -> int:
    ranked = np.where(room, latencies, np.inf)
    best = int(ranked.argmin())
    return best if np.isfinite(ranked[best]) else NOWHERE


def _load(topics: Topics, broker: NDArray[np.int64], brokers: int) -> NDArray[np.float64]:
    placed = broker != NOWHERE
    return np.bincount(broker[placed], topics.rate[placed], brokers).astype(float)


def _centroid_latency_at(topics: Topics, brokers: Brokers, broker: NDArray[np.int64]) -> NDArray[np.float64]:
    legs = [
        np.linalg.norm(centroids - brokers.position[broker], axis=1) + brokers.height[broker]
        for centroids in (topics.producer_centroid, topics.consumer_centroid)
    ]
    return np.asarray(topics.deviation + np.nan_to_num(legs).sum(axis=0))


def described(topics: Topics, brokers: Brokers, broker: NDArray[np.int64], expected: NDArray[np.float64]) -> Partition:
    """An assignment with its load, overloaded brokers and moves."""
    load = _load(topics, broker, len(brokers))
    capacity = current_capacity(topics, brokers)
    moves = int(np.count_nonzero((broker != topics.broker) & (topics.broker != NOWHERE)))
    return Partition(broker, expected, load, np.flatnonzero(load > capacity), moves)
