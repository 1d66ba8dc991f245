"""Centroids, W(t), E(t) and W(t, b) against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from tests.placement.partitioning import literal
from tests.placement.partitioning.instances import instances

from nearcast.placement.partitioning import PartitionClients, PartitionSites, aggregate
from nearcast.placement.partitioning.planners import centroid_latencies, pair_latencies
from nearcast.placement.partitioning.problem import NOWHERE

SITES = PartitionSites(np.array([[0.0, 0.0], [10.0, 0.0]]), np.array([1.0, 2.0]), np.array([9.0, 9.0]))


def test_a_topic_by_hand() -> None:
    """Producers at (0, 3) and (0, 5), one consumer at (10, 4); heights 1, 2 and 3."""
    clients = PartitionClients(
        topic=np.zeros(3, dtype=int),
        produces=np.array([True, True, False]),
        consumes=np.array([False, False, True]),
        position=np.array([[0.0, 3.0], [0.0, 5.0], [10.0, 4.0]]),
        height=np.array([1.0, 2.0, 3.0]),
    )
    topics = aggregate(clients, SITES, np.array([1]), np.array([40.0]), np.array([1.0]))
    assert topics.producer_centroid.tolist() == [[0, 4]]
    assert topics.consumer_centroid.tolist() == [[10, 4]]
    assert topics.deviation.tolist() == [(1 + 2) + (0 + 3)]
    assert topics.latency == pytest.approx([(np.hypot(10, 5) + 2 + 2) + (4 + 3 + 2)])
    at_sites = centroid_latencies(topics, SITES, np.array([0]))
    far = np.hypot(10, 4)
    assert at_sites == pytest.approx(np.array([[(4 + 1) + (far + 1) + 6, (far + 2) + (4 + 2) + 6]]))


def test_a_side_without_clients_adds_nothing() -> None:
    clients = PartitionClients(
        np.array([0]), np.array([True]), np.array([False]), np.array([[0.0, 4.0]]), np.array([1.0])
    )
    topics = aggregate(clients, SITES, np.array([0, 1]), np.full(2, 9.0), np.ones(2))
    assert topics.latency.tolist() == [4 + 1 + 1, 0]
    assert centroid_latencies(topics, SITES, np.array([1])).tolist() == [[0, 0]]


def test_a_topic_without_a_broker_has_no_latency_yet() -> None:
    clients = PartitionClients(np.array([0]), np.ones(1, bool), np.ones(1, bool), np.zeros((1, 2)), np.ones(1))
    topics = aggregate(clients, SITES, np.array([NOWHERE]), np.full(1, 9.0), np.ones(1))
    assert topics.latency.tolist() == [np.inf]


@given(instances())
def test_columns_equal_the_definitions(instance: literal.Instance) -> None:
    topics, count = instance.topics(), len(instance.site)
    everyone = np.arange(count)
    estimate = centroid_latencies(topics, instance.sites, everyone)
    pairs = pair_latencies(topics, instance.clients, instance.sites)(everyone)
    for t in range(count):
        assert topics.latency[t] == pytest.approx(literal.worst_latency(instance, t, instance.site[t]))
        for b in range(len(instance.sites)):
            assert estimate[t, b] == pytest.approx(literal.centroid_estimate(instance, t, b))
            assert pairs[t, b] == pytest.approx(literal.worst_latency(instance, t, b))


@given(instances())
def test_the_estimate_is_never_below_the_worst_latency(instance: literal.Instance) -> None:
    """So a site that the centroids call feasible keeps the bound."""
    topics = instance.topics()
    everyone = np.arange(len(topics))
    estimate = centroid_latencies(topics, instance.sites, everyone)
    pairs = pair_latencies(topics, instance.clients, instance.sites)(everyone)
    assert (estimate >= pairs - 1e-9).all()
