"""The fewest hops that any storage plan can have while stores are down: linear programmes.

A plan puts k_t replicas of topic t at some of M stores, of which F random ones are down. A request goes to its nearest
replica that is up: to the l-th nearest with the probability that l - 1 given stores are down and another one is up.
For one topic with k replicas anywhere the programme of the fault-tolerant k-median bounds the expected way from below:
every node is assigned to one replica per level, to no replica twice. Over the topics, the L·M places go where they save
most. What is left out, that all topics share M stores, only makes plans worse. A request for a topic of which all
replicas are down counts as if the farthest of them answered.

When the stores that are left are assigned their topics again, `fewest_hops_at` says what no assignment can be below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, eye_array, hstack, kron, vstack

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.storage import Network

__all__ = ["fewest_hops", "fewest_hops_at", "hops_by_degree", "level_weights"]

LEVELS = 3  # of the nearest replicas; the last stands for all beyond it, which are no nearer


def level_weights(stores: int, down: int, levels: int = LEVELS) -> Floats:
    """P(the l - 1 nearest replicas are down and the l-th is up) for l = 1, 2, …; the rest with the last of them.

    Levels that are never reached are left out.
    """
    weights, all_down = [], 1.0
    for level in range(levels - 1):
        next_down = max(down - level, 0) / (stores - level)
        weights.append(all_down * (1 - next_down))
        all_down *= next_down
    return np.asarray(np.trim_zeros(np.array([*weights, all_down]), "b"))


def hops_by_degree(network: Network, stores: int, down: int) -> Floats:
    """`[k]`: at least so many hops has a request for a topic of k replicas that all nodes ask for alike; [0] as [1]."""
    found = [_least(network, k, level_weights(stores, down, min(k, LEVELS))) for k in range(1, stores + 1)]
    return np.array([found[0], *found])


def fewest_hops(network: Network, share: Floats, stores: int, capacity: int, down: int) -> float:
    """Of a request when `down` of the stores are: `share[t]` of all requests are for topic t, from all nodes alike."""
    by_degree = _convex_below(hops_by_degree(network, stores, down)[1:])
    saved = -np.diff(by_degree)  # by the second, third, … replica of a topic
    first = len(share)
    gains = np.sort((share[:, None] * saved[None, :]).ravel())[::-1]
    return float(share.sum() * by_degree[0] - gains[: stores * capacity - first].sum())


def fewest_hops_at(network: Network, share: Floats, stores: Ints, capacity: int) -> float:
    """Of a request when exactly these stores are up and hold `capacity` topics each, whichever are best."""
    nodes, places, topics = network.nodes, len(stores), len(share)
    requests = topics * nodes
    served = kron(eye_array(requests), np.ones((1, places)))  # sums x[t, i, j] over the stores j
    held = kron(eye_array(topics), kron(np.ones((nodes, 1)), eye_array(places)))  # y[t, j] for each (t, i, j)
    within = hstack([eye_array(requests * places), -held])
    full = hstack([coo_array((places, requests * places)), kron(np.ones((1, topics)), eye_array(places))])
    cost = share[:, None, None] * network.hops[:, stores] / nodes
    found = linprog(
        np.concatenate([cost.ravel(), np.zeros(topics * places)]),
        A_ub=vstack([within, full]).tocsr(),
        b_ub=np.r_[np.zeros(requests * places), np.full(places, capacity)],
        A_eq=hstack([served, coo_array((requests, topics * places))]).tocsr(),
        b_eq=np.ones(requests),
        bounds=(0, 1),
        method="highs",
    )
    assert found.status == 0, found.message
    return float(found.fun)


def _least(network: Network, replicas: int, weights: Floats) -> float:
    nodes, levels = network.nodes, len(weights)
    pairs = nodes * nodes
    every_node = kron(eye_array(nodes), np.ones((1, nodes)))  # sums x[i, j] over the replicas j
    used = kron(np.ones((nodes, 1)), eye_array(nodes))  # y[j] for each pair (i, j)
    within = hstack([*[eye_array(pairs)] * levels, -used]).tocsr()
    assigned = hstack([kron(eye_array(levels), every_node), coo_array((levels * nodes, nodes))])
    count = hstack([coo_array((1, levels * pairs)), np.ones((1, nodes))])
    cost = np.concatenate([*(weight * network.hops.ravel() / nodes for weight in weights), np.zeros(nodes)])
    found = linprog(
        cost,
        A_ub=within,
        b_ub=np.zeros(pairs),
        A_eq=vstack([assigned, count]).tocsr(),
        b_eq=np.r_[np.ones(levels * nodes), replicas],
        bounds=[(0, None)] * (levels * pairs) + [(0, 1)] * nodes,
        method="highs-ds",
    )
    assert found.status == 0, found.message
    return float(found.fun)


def _convex_below(values: Floats) -> Floats:
    """The largest convex sequence that is nowhere above the values."""
    at = np.arange(len(values), dtype=float)
    corners: list[int] = []
    for new in range(len(values)):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (values[b] - values[a]) * (new - a) < (values[new] - values[a]) * (b - a):
                break
            corners.pop()
        corners.append(new)
    return np.asarray(np.interp(at, corners, values[corners]))
