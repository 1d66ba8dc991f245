"""The feasibility function F: may these topics share a worker?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError
from nearcast.placement.colocation.latency_model import subset_columns, topic_features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.placement.arrays import Bools, Floats, Ints
    from nearcast.placement.colocation.latency_model import LatencyModel

__all__ = ["ColocationPlan", "ColocationTopics", "Feasibility", "InfeasibleTopicError", "feasibility", "max_rate"]

# A worker asked for all the time there is falls behind without end, and no p90 describes it. Closer to that than
# this, the p90 of a run depends on chance and on how long the run is.
MAX_LOAD = 0.98


class InfeasibleTopicError(InputError):
    """A topic does not meet its bound even alone on a worker (Property 1(a)); `topic` is its position."""

    def __init__(self, topic: int, reason: str) -> None:
        super().__init__(f"topic {topic}: {reason}")
        self.topic = topic
        self.reason = reason


@dataclass(frozen=True)
class ColocationTopics:
    """What a planner knows of each topic: r, p and its own bound τ on the 90th percentile latency."""

    rate: Floats
    processing_ms: Floats
    bound_ms: Floats

    def __len__(self) -> int:
        return len(self.rate)


@dataclass(frozen=True)
class ColocationPlan:
    """Which worker each topic is on (numbers from 0, not all need be in use) and what is predicted there."""

    worker: Ints
    predicted_ms: Floats
    violations: int

    @property
    def workers(self) -> int:
        """|B|: how many workers are in use."""
        return len(np.unique(self.worker))


@dataclass(frozen=True)
class Feasibility:
    """F(T') of the paper for one collection of topics; sets are rows of positions, all of one size.

    F(T') = 1 when the load is at most 1 and every subset of T' is learned to meet its members' bounds, less
    the margin. That is the monotone prediction put to the test, so Equation (6) holds: what contains an
    infeasible set is infeasible.
    """

    model: LatencyModel
    topics: ColocationTopics
    features: Floats  # topics × (p, r, d)
    load: Floats  # d of each topic
    log_limit: Floats
    isolated: Floats  # log p90 of each topic alone

    def sets(self, sets: Ints) -> Bools:
        """F of each row."""
        return self._subsets(sets, newest_only=False)

    def extended(self, sets: Ints) -> Bools:
        """F of each row, known to be feasible without its last column: only subsets with it are new."""
        return self._subsets(sets, newest_only=True)

    def groups(self, groups: Sequence[Sequence[int]]) -> Bools:
        """F of groups that are not all of one size."""
        size = np.array([len(group) for group in groups])
        good = np.zeros(len(groups), dtype=bool)
        for count in np.unique(size):
            same = np.flatnonzero(size == count)
            good[same] = self.sets(np.array([groups[int(i)] for i in same], dtype=np.int64))
        return good

    def may_be(self, sets: Ints) -> Bools:
        """False where the set itself fails, whatever its subsets do. Cheap, and enough to cut a search:
        nothing that contains such a set is feasible."""
        topics = self.features[sets]
        met = (self.model.log_latency_of_sets(topics) <= self.log_limit[sets]).all(axis=1)
        return np.asarray(met & (topics[:, :, 2].sum(axis=1) <= MAX_LOAD))

    def newcomer_may_join(self, members: Ints, newcomers: Ints) -> Bools:
        """False where the newcomer itself would be too slow among the members: one prediction each."""
        own = self.features[newcomers]
        background = self.features[members].sum(axis=0, keepdims=True)
        log_latency = self.model.log_latency(len(members) + 1, own, background)
        return np.asarray(log_latency <= self.log_limit[newcomers])

    def plan(self, worker: Ints) -> ColocationPlan:
        """A plan with its predictions, computed from the sets themselves."""
        order = np.argsort(worker, kind="stable")
        _, start, count = np.unique(worker[order], return_index=True, return_counts=True)
        predicted = np.empty(len(worker))
        for size in np.unique(count):
            members = order[start[count == size][:, None] + np.arange(size)]
            predicted[members] = self.model.predict_ms(self.features[members])
        return ColocationPlan(worker, predicted, int((predicted > self.topics.bound_ms).sum()))

    def _subsets(self, sets: Ints, *, newest_only: bool) -> Bools:
        """No subset of two or more fails. A set that failed at one size is not asked at the next."""
        good = self.load[sets].sum(axis=1) <= MAX_LOAD
        for size in range(sets.shape[1], 1, -1):
            asked = np.flatnonzero(good)
            if not len(asked):
                break
            columns, _ = subset_columns(sets.shape[1], size)
            if newest_only:
                columns = columns[columns[:, -1] == sets.shape[1] - 1]
            members = sets[asked][:, columns].reshape(-1, size)
            log_latency = self.model.log_latency_of_sets(self.features[members])
            met = (log_latency <= self.log_limit[members]).all(axis=1)
            good[asked] = met.reshape(len(asked), -1).all(axis=1)
        return np.asarray(good)


def feasibility(model: LatencyModel, topics: ColocationTopics, margin: float) -> Feasibility:
    """F for these topics; `margin` is the share of each bound kept free for the model's error.

    Refuses a topic that does not meet its bound alone, which has to be split: Property 1(a), Equation (5).
    """
    features = topic_features(topics.rate, topics.processing_ms)
    isolated = model.log_latency(1, features, features)
    log_limit = np.log(topics.bound_ms * (1 - margin))
    overloaded = np.flatnonzero(features[:, 2] > MAX_LOAD)
    if len(overloaded):
        topic = int(overloaded[0])
        asks = f"{topics.rate[topic]:g}/s of {topics.processing_ms[topic]:g} ms each"
        raise InfeasibleTopicError(topic, f"{asks} is more than one worker can process; split the topic")
    slow = np.flatnonzero(isolated > log_limit)
    if len(slow):
        topic = int(slow[0])
        alone, bound = np.exp(isolated[topic]), topics.bound_ms[topic]
        needs = f"p90 is predicted at {alone:.0f} ms even alone on a worker, its bound is {bound:g} ms"
        most = max_rate(model, float(topics.processing_ms[topic]), float(bound), margin)
        advice = f"at most {most:.3g}/s would do, split the topic" if most > 0 else "no rate would do"
        raise InfeasibleTopicError(topic, f"{needs} less a margin of {margin:.0%}; {advice}")
    return Feasibility(model, topics, features, features[:, 2].copy(), log_limit, isolated)


def max_rate(model: LatencyModel, processing_ms: float, bound_ms: float, margin: float) -> float:
    """r_max: the rate up to which a topic alone on a worker meets its bound, less the margin; 0 if at none.

    Rates are asked from the least one learned from upwards, so that what lies behind a rate that fails does not count.
    """
    highest = MAX_LOAD * 1000 / processing_ms
    rate = np.linspace(min(float(model.isolated.low[1]), highest), highest, 2001)
    features = topic_features(rate, np.full(len(rate), processing_ms))
    fails = model.log_latency(1, features, features) > np.log(bound_ms * (1 - margin))
    first = int(fails.argmax()) if fails.any() else len(rate)
    return float(rate[first - 1]) if first else 0.0
