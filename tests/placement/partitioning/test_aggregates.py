"""Centroids, W(t), E(t) and W(t, b) against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from tests.placement.partitioning import literal
from tests.placement.partitioning.instances import instances

from nearcast.placement.partitioning import Brokers, Clients, aggregate
from nearcast.placement.partitioning.aggregates import NOWHERE
from nearcast.placement.partitioning.planners import centroid_latencies, pair_latencies

BROKERS = Brokers(np.array([[0.0, 0.0], [10.0, 0.0]]), np.array([1.0, 2.0]), np.array([9.0, 9.0]))


def test_a_topic_by_hand() -> None:
    """Producers at (0, 3) and (0, 5), one consumer at (10, 4); heights 1, 2 and 3."""
    clients = Clients(
        topic=np.zeros(3, dtype=int),
        produces=np.array([True, True, False]),
        consumes=np.array([False, False, True]),
        position=np.array([[0.0, 3.0], [0.0, 5.0], [10.0, 4.0]]),
        height=np.array([1.0, 2.0, 3.0]),
    )
    topics = aggregate(clients, BROKERS, np.array([1]), np.array([40.0]), np.array([1.0]))
    assert topics.producer_centroid.tolist() == [[0, 4]]
    assert topics.consumer_centroid.tolist() == [[10, 4]]
    assert topics.deviation.tolist() == [(1 + 2) + (0 + 3)]
    assert topics.latency == pytest.approx([(np.hypot(10, 5) + 2 + 2) + (4 + 3 + 2)])
    at_brokers = centroid_latencies(topics, BROKERS, np.array([0]))
    far = np.hypot(10, 4)
    assert at_brokers == pytest.approx(np.array([[(4 + 1) + (far + 1) + 6, (far + 2) + (4 + 2) + 6]]))


def test_a_side_without_clients_adds_nothing() -> None:
    clients = Clients(np.array([0]), np.array([True]), np.array([False]), np.array([[0.0, 4.0]]), np.array([1.0]))
    topics = aggregate(clients, BROKERS, np.array([0, 1]), np.full(2, 9.0), np.ones(2))
    assert topics.latency.tolist() == [4 + 1 + 1, 0]
    assert centroid_latencies(topics, BROKERS, np.array([1])).tolist() == [[0, 0]]


def test_a_topic_without_a_broker_has_no_latency_yet() -> None:
    clients = Clients(np.array([0]), np.ones(1, bool), np.ones(1, bool), np.zeros((1, 2)), np.ones(1))
    topics = aggregate(clients, BROKERS, np.array([NOWHERE]), np.full(1, 9.0), np.ones(1))
    assert topics.latency.tolist() == [np.inf]


@given(instances())
def test_columns_equal_the_definitions(instance: literal.Instance) -> None:
    topics, count = instance.topics(), len(instance.broker)
    everyone = np.arange(count)
    estimate = centroid_latencies(topics, instance.brokers, everyone)
    pairs = pair_latencies(topics, instance.clients, instance.brokers)(everyone)
    for t in range(count):
        assert topics.latency[t] == pytest.approx(literal.worst_latency(instance, t, instance.broker[t]))
        for b in range(len(instance.brokers)):
            assert estimate[t, b] == pytest.approx(literal.centroid_estimate(instance, t, b))
            assert pairs[t, b] == pytest.approx(literal.worst_latency(instance, t, b))


@given(instances())
def test_the_estimate_is_never_below_the_worst_latency(instance: literal.Instance) -> None:
    """So a broker that the centroids call feasible keeps the bound."""
    topics = instance.topics()
    everyone = np.arange(len(topics))
    estimate = centroid_latencies(topics, instance.brokers, everyone)
    pairs = pair_latencies(topics, instance.clients, instance.brokers)(everyone)
    assert (estimate >= pairs - 1e-9).all()
