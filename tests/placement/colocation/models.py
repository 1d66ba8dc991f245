"""Latency models made up for tests: quick to build, and as far from monotone as a network can be."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np

from nearcast.placement.colocation.latency_model import IsolatedModel, LatencyModel, LatencyNetwork
from nearcast.placement.colocation.problem import MAX_LOAD, ColocationTopics, Feasibility, feasibility

K = 4


@cache
def wild_model(seed: int) -> LatencyModel:
    """Random weights, pulled upwards with load: adding a topic often lowers what is learned."""
    generator = np.random.default_rng(seed)

    def network() -> LatencyNetwork:
        first = generator.normal(size=(6, 8)) / np.array([25, 15, 0.4, 50, 30, 0.8])[:, None]
        first[5] = np.abs(first[5]) * 3
        weights = [first, generator.normal(size=(8, 8)) * 0.4, np.abs(generator.normal(size=(8, 1))) * 0.4]
        biases = [generator.normal(size=8), generator.normal(size=8), np.array([4.0])]
        single = [array.astype(np.float32) for array in (*weights, *biases)]
        return LatencyNetwork((single[0], single[1], single[2]), (single[3], single[4], single[5]))

    powers = np.array([(p, r) for p in range(5) for r in range(5 - p)])
    coefficients = generator.normal(size=len(powers)) * 0.1
    coefficients[0] = 4.0
    isolated = IsolatedModel(np.array([10.0, 1.0]), np.array([40.0, 60.0]), powers, coefficients)
    return LatencyModel(isolated, tuple(network() for _ in range(K - 1)))


def made_up(seed: int, n: int) -> Feasibility:
    """n topics with bounds of their own, each feasible alone, and a wild model."""
    generator = np.random.default_rng(seed)
    model = wild_model(seed % 5)
    processing = generator.uniform(10, 40, n)
    rate = np.maximum(1.0, generator.uniform(0.02, 0.6, n) / processing * 1000)
    features = np.stack([processing, rate, processing * rate / 1000], axis=1)
    alone = np.exp(model.log_latency(1, features, features))
    bound = np.maximum(generator.uniform(100, 1500, n), alone / 0.9 + 1)
    return feasibility(model, ColocationTopics(rate, processing, bound), margin=0.1)


def literal_latency(possible: Feasibility, topic: int, others: list[int]) -> float:
    """log of the largest latency learned for a topic in any subset, by the definition, one set at a time."""
    largest = -np.inf
    for size in range(len(others) + 1):
        for chosen in combinations(others, size):
            own = possible.features[[topic]]
            background = possible.features[list(chosen)].sum(axis=0, keepdims=True)
            largest = max(largest, float(possible.model.log_latency(size + 1, own, background)[0]))
    return largest


def literal_feasible(possible: Feasibility, topics: list[int]) -> bool:
    """F(T') by the definition."""
    if possible.load[topics].sum() > MAX_LOAD:
        return False
    return all(literal_latency(possible, t, [o for o in topics if o != t]) <= possible.log_limit[t] for t in topics)
