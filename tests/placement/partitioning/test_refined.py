"""Refined partitioning against the optimum, for both objectives, with and without a cap on moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.partitioning import literal
from tests.placement.partitioning.instances import build, instances

from nearcast.placement.partitioning import (
    PartitionClients,
    PartitionSites,
    aggregate,
    all_pairs,
    exact,
    hashed,
    late_pairs,
    pair_counts,
    planners,
    refined,
)
from nearcast.placement.partitioning.refined import late_topics

if TYPE_CHECKING:
    from nearcast.placement.partitioning import Partition


def latencies(instance: literal.Instance) -> np.ndarray:
    topics = instance.topics()
    return planners.pair_latencies(topics, instance.clients, instance.sites)(np.arange(len(topics)))


@given(instances())
def test_pairs_are_counted_as_the_paper_does(instance: literal.Instance) -> None:
    late = late_pairs(instance.clients, instance.sites, instance.bound)
    counts = pair_counts(instance.clients, len(instance.site))
    for t in range(len(instance.site)):
        producers, consumers = instance.sides(t)
        assert counts[t] == len(producers) * len(consumers)
        for b in range(len(instance.sites)):
            here = instance.node(b)
            ways = [literal.d(p, here) + literal.d(c, here) for p in producers for c in consumers]
            assert late[t, b] == sum(way > instance.bound[t] for way in ways)


def test_many_pairs_are_counted_like_few() -> None:
    rng = np.random.default_rng(2)
    clients = PartitionClients(np.zeros(200, int), np.ones(200, bool), np.ones(200, bool), rng.normal(0, 30, (200, 3)),
                               rng.uniform(0, 5, 200))  # fmt: skip
    sites = PartitionSites(rng.normal(0, 30, (4, 3)), np.zeros(4), np.ones(4))
    leg = np.linalg.norm(clients.position[:, None] - sites.position, axis=2) + clients.height[:, None]
    expected = (leg[:, None] + leg[None] > 90.0).sum(axis=(0, 1))
    assert late_pairs(clients, sites, np.array([90.0])).tolist() == [expected.tolist()]


@pytest.mark.parametrize("fill", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_refined_is_the_optimum_of_small_instances(seed: int, fill: float) -> None:
    """It was up to 1.9 times above the least late topics."""
    instance = build(seed, topics=20, sites=4, fill=fill, resources=False)
    topics, ways, rows = instance.topics(), latencies(instance), np.arange(20)
    pairs = late_pairs(instance.clients, instance.sites, instance.bound)
    start = all_pairs(topics, instance.clients, instance.sites)
    for late in (None, pairs):
        found, best = refined(topics, instance.sites, ways, start, late), exact(topics, instance.sites, ways, late)
        counted = (ways > instance.bound[:, None]).astype(float) if late is None else late
        assert not found.overloaded.size
        assert counted[rows, found.site].sum() == counted[rows, best.site].sum()
        assert found.moves == best.moves


def test_topics_that_are_late_everywhere_stay() -> None:
    """From a hash plan 84 topics were moved where 25 had to be: those that no site can serve in time moved, too."""
    instance = build(5, topics=120, sites=6, fill=0.4, resources=False)
    names = [f"topic-{i}" for i in range(120)]
    at_hash = hashed(instance.topics(), names, instance.sites).site
    topics = aggregate(instance.clients, instance.sites, at_hash, instance.bound, instance.rate)
    ways = latencies(instance)
    late = ways > instance.bound[:, None]
    needed = int((late[np.arange(120), at_hash] & ~late.all(axis=1)).sum())
    plan = refined(topics, instance.sites, ways, all_pairs(topics, instance.clients, instance.sites))
    assert plan.moves == needed
    assert late[np.arange(120), plan.site].sum() == late.all(axis=1).sum()


@settings(max_examples=50)
@given(instances(max_topics=8), st.integers(0, 4))
def test_a_cap_on_moves_is_kept_and_nothing_gets_worse(instance: literal.Instance, most: int) -> None:
    topics, ways = instance.topics(), latencies(instance)
    start = all_pairs(topics, instance.clients, instance.sites)
    plan = refined(topics, instance.sites, ways, start, moves_at_most=most)
    rows, capacity = np.arange(len(topics)), planners.current_capacity(topics, instance.sites)
    before = np.bincount(topics.site, topics.rate, len(instance.sites))

    def over(load: np.ndarray) -> float:
        return float(np.maximum(load - capacity, 0).sum())

    assert plan.moves <= most
    assert over(plan.load) <= over(before) + 1e-9
    if over(before) == 0:
        late = ways > instance.bound[:, None]
        assert late[rows, plan.site].sum() <= late[rows, topics.site].sum()


@pytest.mark.parametrize("objective", ["topics", "pairs"])
@pytest.mark.parametrize(
    ("seed", "topics", "sites", "fill"),
    [(1, 30, 10, 0.6), (2, 30, 5, 0.9), (3, 150, 10, 0.7), (4, 100, 20, 1.1), (5, 80, 3, 1.1), (6, 80, 5, 0.97)],
)
def test_no_method_is_better_with_as_many_moves(
    seed: int, topics: int, sites: int, fill: float, objective: str
) -> None:
    """In overload, then in what is late; the other methods, and what it finds itself with more or fewer moves.

    Sites that cannot hold everything (a fill above 1) are among them. Rounding a linear programme once broke the cap.
    """
    instance = build(seed, topics=topics, sites=sites, fill=fill, resources=False)
    given_topics, ways, rows = instance.topics(), latencies(instance), np.arange(topics)
    capacity = planners.current_capacity(given_topics, instance.sites)
    late = late_topics(given_topics, ways)
    if objective == "pairs":
        late = late_pairs(instance.clients, instance.sites, instance.bound)
    start = all_pairs(given_topics, instance.clients, instance.sites)

    def found(most: int | None) -> Partition:
        return refined(given_topics, instance.sites, ways, start, late, moves_at_most=most)

    def quality(site: np.ndarray) -> tuple[float, float]:
        load = np.bincount(site, given_topics.rate, sites)
        over = float(np.maximum(load - capacity, 0).sum()) / float(capacity.max())
        return round(over, 9), float(late[rows, site].sum())

    free = found(None)
    capped = {most: found(most) for most in (free.moves // 3, 2 * free.moves // 3)}
    for most, plan in capped.items():
        assert plan.moves <= most
    for plan in (
        planners.centroid(given_topics, instance.sites),
        start,
        hashed(given_topics, [f"topic-{i}" for i in range(topics)], instance.sites),
        free,
        *capped.values(),
    ):
        ours = found(plan.moves)
        assert ours.moves <= plan.moves
        assert quality(ours.site) <= quality(plan.site)


@pytest.mark.parametrize("seed", range(3))
def test_refined_is_the_optimum_of_small_instances_that_do_not_fit(seed: int) -> None:
    instance = build(seed, topics=16, sites=3, fill=1.1, resources=False)
    topics, ways, rows = instance.topics(), latencies(instance), np.arange(16)
    capacity, late = planners.current_capacity(topics, instance.sites), late_topics(topics, ways)
    start = all_pairs(topics, instance.clients, instance.sites)
    found, best = refined(topics, instance.sites, ways, start), exact(topics, instance.sites, ways)
    over = [np.maximum(plan.load - capacity, 0).sum() for plan in (found, best)]
    assert over[0] == pytest.approx(over[1])
    assert late[rows, found.site].sum() == late[rows, best.site].sum()
    assert found.moves == best.moves
