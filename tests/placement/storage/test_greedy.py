"""The greedy algorithm against the literal one, request by request."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.placement.storage import literal

from nearcast.placement.storage import Network, from_edges, greedy, modified_greedy


@given(st.one_of(literal.networks(), literal.networks(costs=True)), st.integers(0, 2**16))
def test_vectorised_equals_literal(network: Network, seed: int) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.integers(0, 6, size=(3, network.nodes)).astype(float)
    replicas = rng.integers(1, network.nodes + 1, size=3)
    votes = np.zeros(demand.shape)
    for origin in range(network.nodes):
        chosen = greedy(network, demand, replicas, origin)
        for topic in range(3):
            expected = literal.greedy(network, demand[topic], int(replicas[topic]), origin)
            assert set(np.flatnonzero(chosen[topic]).tolist()) == expected
        votes += chosen
    uniform = np.full(network.nodes, 1 / network.nodes)
    np.testing.assert_allclose(modified_greedy(network, demand, replicas, uniform), votes)


def test_many_topics_are_handled_in_blocks_alike() -> None:
    rng = np.random.default_rng(5)
    child = np.arange(1, 30)
    network = from_edges(30, child, rng.integers(0, child))
    demand = rng.integers(0, 50, size=(150, 30)).astype(float)
    replicas = rng.integers(1, 5, size=150)
    together = greedy(network, demand, replicas, 3)
    for topic in (0, 70, 149):
        alone = greedy(network, demand[[topic]], replicas[[topic]], 3)
        np.testing.assert_array_equal(together[topic], alone[0])


def test_publication_probabilities_weigh_the_origins() -> None:
    network = from_edges(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
    demand, replicas = np.array([[1.0, 0, 0, 5]]), np.array([1])
    only_first = modified_greedy(network, demand, replicas, np.array([1.0, 0, 0, 0]))
    np.testing.assert_allclose(only_first[0], [0, 0, 0, 1])
    weighted = modified_greedy(network, demand, replicas, np.array([0.75, 0, 0, 0.25]))
    np.testing.assert_allclose(weighted[0], [0.5, 0, 0, 1.5])


def test_nothing_left_to_gain_chooses_nothing() -> None:
    network = from_edges(3, np.array([0, 1]), np.array([1, 2]))
    chosen = greedy(network, np.array([[0.0, 0, 2], [0, 0, 0]]), np.array([3, 2]), 0)
    assert chosen.tolist() == [[False, False, True], [False, False, False]]
