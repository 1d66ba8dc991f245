"""The bound on hops while stores are down: never above what an exhaustive search over all plans finds."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearcast.lab.experiments.failure_bound import fewest_hops, fewest_hops_at, hops_by_degree, level_weights
from nearcast.lab.workloads.content import random_tree
from nearcast.placement.storage import from_edges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.placement.arrays import Floats
    from nearcast.placement.storage import Network


def test_the_nearest_that_is_up() -> None:
    """One of four stores is down: the nearest with 1/4, and never the second as well."""
    np.testing.assert_allclose(level_weights(4, 1), [0.75, 0.25])
    np.testing.assert_allclose(level_weights(4, 0), [1.0])
    weights = level_weights(20, 5)
    np.testing.assert_allclose(weights, [15 / 20, 5 / 20 * 15 / 19, 5 / 20 * 4 / 19])
    assert weights.sum() == pytest.approx(1)


def expected_hops(
    network: Network, share: Floats, kept: Sequence[tuple[int, ...]], stores: tuple[int, ...], down: int
) -> float:
    """Literally: the mean over all sets of failed stores; every topic has more replicas than stores are down."""
    sets = list(itertools.combinations(stores, down))
    total = 0.0
    for failed in sets:
        for weight, nodes in zip(share, kept, strict=True):
            left = [node for node in nodes if node not in failed]
            total += float(weight * network.hops[left].min(axis=0).mean())
    return total / len(sets)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("down", [0, 1])
def test_no_plan_is_below_the_bound(seed: int, down: int) -> None:
    network, share = random_tree(7, np.random.default_rng(seed)), np.array([0.7, 0.3])
    bound = fewest_hops(network, share, stores=3, capacity=2, down=down)
    best = np.inf
    for stores in itertools.combinations(range(7), 3):
        every = [c for size in (2, 3) for c in itertools.combinations(stores, size)]
        for kept in itertools.product(every, repeat=2):
            if max(sum(node in nodes for nodes in kept) for node in stores) <= 2:
                best = min(best, expected_hops(network, share, kept, stores, down))
    assert bound <= best + 1e-9
    assert bound > 0.6 * best


def test_on_a_path_the_bound_is_the_optimum() -> None:
    """Nine nodes in a row, nothing down: medians at 4 (20/9 hops), at 2 and 6 or 7, at 1, 4 and 7 (6/9)."""
    path = from_edges(9, np.arange(8), np.arange(1, 9))
    np.testing.assert_allclose(hops_by_degree(path, 3, 0)[1:], [20 / 9, 10 / 9, 6 / 9])


@pytest.mark.parametrize("seed", range(4))
def test_no_assignment_to_given_stores_is_below_their_bound(seed: int) -> None:
    network, share = random_tree(7, np.random.default_rng(seed)), np.array([0.5, 0.3, 0.2])
    stores = np.array([0, 2, 5])
    bound = fewest_hops_at(network, share, stores, capacity=2)
    every = [c for size in (1, 2, 3) for c in itertools.combinations(stores.tolist(), size)]
    best = min(
        expected_hops(network, share, kept, tuple(stores.tolist()), 0)
        for kept in itertools.product(every, repeat=3)
        if max(sum(node in nodes for nodes in kept) for node in stores) <= 2
    )
    assert 0.9 * best < bound <= best + 1e-9
