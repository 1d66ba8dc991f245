"""The latency model: what 90th percentile each topic of a co-located set can expect."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.placement.arrays import Floats, Ints

__all__ = ["IsolatedModel", "LatencyModel", "LatencyNetwork", "Tail", "load_of", "subset_columns", "topic_features"]


SATURATION_POWERS = np.array([8, 16, 32, 64])


def load_of(rate: Floats, processing_ms: Floats) -> Floats:
    """d = p·r: the share of a worker's time that a topic asks for."""
    return rate * processing_ms / 1000


def topic_features(rate: Floats, processing_ms: Floats) -> Floats:
    """p, r and d of each topic, one row per topic. Sums of such rows describe a background."""
    return np.stack([processing_ms, rate, load_of(rate, processing_ms)], axis=-1)


@dataclass(frozen=True)
class IsolatedModel:
    """log p90 of a topic alone: a polynomial of degree 4 in p and r, both scaled to the range trained on.

    The paper fits the latency itself; its logarithm fits the simulated worker far better (R² .97, not .69). Near
    saturation latency climbs faster than such a polynomial can: high powers of the load follow it.
    """

    low: Floats  # p, r
    high: Floats
    powers: Ints  # one row per term: the powers of p and r
    coefficients: Floats
    saturation: Floats = field(default_factory=lambda: np.zeros(len(SATURATION_POWERS)))

    def saturation_terms(self, own: Floats) -> Floats:
        """High powers of the load: next to nothing below 0.8."""
        return np.asarray(np.minimum(own[:, 2:3], 1.0) ** SATURATION_POWERS)

    def terms(self, own: Floats) -> Floats:
        """The polynomial's terms for topics p, r, d. Features are clipped to the range: a polynomial
        of degree 4 does not extrapolate."""
        scaled = (np.clip(own[:, :2], self.low, self.high) - self.low) / (self.high - self.low)
        powers = scaled[:, :, None] ** np.arange(5)
        return powers[:, 0, self.powers[:, 0]] * powers[:, 1, self.powers[:, 1]]

    def log_latency(self, own: Floats) -> Floats:
        return np.asarray(self.terms(own) @ self.coefficients + self.saturation_terms(own) @ self.saturation)


@dataclass(frozen=True)
class LatencyNetwork:
    """log p90 of a topic among others: two hidden layers of rectified linear units on the paper's six
    features, p_f, r_f, d_f, Σp_b, Σr_b, Σd_b. Their scaling is part of the first layer's weights.

    Single precision: two to three times as fast, and its error is far below the model's.
    """

    weights: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
    biases: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]

    def log_latency(self, own: Floats, background: Floats) -> Floats:
        """Rows p, r, d of the foreground topics, and of their backgrounds or of one they all share."""
        first, second, last = self.weights
        hidden = own.astype(np.float32) @ first[:3]
        hidden += background.astype(np.float32) @ first[3:] + self.biases[0]
        np.maximum(hidden, 0, out=hidden)
        hidden = hidden @ second
        hidden += self.biases[1]
        np.maximum(hidden, 0, out=hidden)
        return (hidden @ last + self.biases[2])[:, 0].astype(np.float64)


@dataclass(frozen=True)
class Tail:
    """What is added to the learned log p90 so that nearly all runs stay below it; it grows with the worker's load.

    Near saturation the p90 of two runs of the same topics differs by a factor, and a mean of them promises what every
    second run breaks. Between the knots the margin is interpolated.
    """

    load: Floats
    margin: Floats

    def at(self, load: Floats) -> Floats:
        return np.interp(load, self.load, self.margin)


@dataclass(frozen=True)
class LatencyModel:
    """ℓ_i(T'): one model per number of co-located topics, up to k, each with the tail of its errors."""

    isolated: IsolatedModel
    networks: tuple[LatencyNetwork, ...]  # for 2, 3, …, k topics
    tails: tuple[Tail, ...] = ()  # for 1, 2, …, k topics; none: the mean is predicted

    @property
    def k(self) -> int:
        """The largest number of co-located topics it can predict."""
        return len(self.networks) + 1

    def log_latency(self, size: int, own: Floats, background: Floats) -> Floats:
        """log p90 (ms) of topics (rows p, r, d) among `size` - 1 others that sum to `background`."""
        if size > 1:
            learned = self.networks[size - 2].log_latency(own, background)
            load = own[:, 2] + background[:, 2]
        else:
            learned = np.maximum(self.isolated.log_latency(own), np.log(own[:, 0]))  # no faster than its processing
            load = own[:, 2]
        return learned + self.tails[size - 1].at(load) if self.tails else learned

    def mean(self) -> LatencyModel:
        """The model without its tails: what was learned."""
        return replace(self, tails=())

    def log_latency_of_sets(self, topics: Floats) -> Floats:
        """log p90 of each member of each set as learned; topics: sets × members × (p, r, d)."""
        sets, size, _ = topics.shape
        background = topics.sum(axis=1, keepdims=True) - topics
        own = topics.reshape(-1, 3)
        return self.log_latency(size, own, background.reshape(-1, 3)).reshape(sets, size)

    def predict_ms(self, topics: Floats) -> Floats:
        """Monotone p90 of each member of each set; topics: sets × members × (p, r, d).

        Property 1(b) asks that a topic is never slower in a smaller set. Networks learned apart from each
        other do not keep it, so a topic's latency is the largest that is learned for it in any subset of
        the set: the smallest function above the learned one that keeps the property.
        """
        sets, size, _ = topics.shape
        highest = np.full((sets, size), -np.inf)
        for smaller in range(1, size + 1):
            columns, of_member = subset_columns(size, smaller)
            learned = self.log_latency_of_sets(topics[:, columns].reshape(-1, smaller, 3))
            per_member = learned.reshape(sets, -1)[:, of_member]
            np.maximum(highest, per_member.max(axis=2), out=highest)
        return np.asarray(np.exp(highest))


@cache
def subset_columns(size: int, smaller: int) -> tuple[Ints, Ints]:
    """All subsets of `smaller` columns out of `size`; for each column, where it stands in that flat list."""
    columns = np.array(list(combinations(range(size), smaller)))
    of_member = np.stack([np.flatnonzero(columns.ravel() == member) for member in range(size)])
    return columns, of_member
