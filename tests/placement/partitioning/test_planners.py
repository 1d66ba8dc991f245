"""Algorithm 1 and its baselines: the planners' contract, the literal oracle, and each policy by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from tests.placement.contract import PlannerContract
from tests.placement.partitioning import literal
from tests.placement.partitioning.instances import build, instances

from nearcast.placement.partitioning import (
    Partition,
    PartitionClients,
    PartitionSites,
    PartitionTopics,
    aggregate,
    all_pairs,
    centroid,
    exact,
    hashed,
    planners,
    refined,
    worst_latencies,
)
from nearcast.placement.partitioning.problem import NOWHERE

WEIGHTS = (1e8, 1e4, 1.0)  # rate above the limits, then violations, then moves


@dataclass(frozen=True)
class Planned:
    partition: Partition
    cost: float


def planned(instance: literal.Instance, partition: Partition) -> Planned:
    """What the vectorised code says the plan costs."""
    capacity = planners.current_capacity(instance.topics(), instance.sites)
    excess = np.maximum(partition.load - capacity, 0).sum()
    latency = worst_latencies(instance.clients, instance.sites, partition.site)
    violations = np.count_nonzero(latency > instance.bound)
    return Planned(partition, float(np.dot(WEIGHTS, (excess, violations, partition.moves))))


def names(instance: literal.Instance) -> list[str]:
    return [f"topic-{i}" for i in range(len(instance.site))]


def best(instance: literal.Instance) -> Planned:
    topics = instance.topics()
    pairs = planners.pair_latencies(topics, instance.clients, instance.sites)(np.arange(len(topics)))
    return planned(instance, exact(topics, instance.sites, pairs))


def better(instance: literal.Instance, start: Planned, seed: int = 0) -> Planned:
    topics = instance.topics()
    pairs = planners.pair_latencies(topics, instance.clients, instance.sites)(np.arange(len(topics)))
    return planned(instance, refined(topics, instance.sites, pairs, start.partition))


class TestPartitioning(PlannerContract):
    instances = instances(max_topics=6)
    exact = staticmethod(best)
    refine = staticmethod(better)
    tolerance = 1e-6
    planners = {  # noqa: RUF012
        "centroid": lambda i, seed: planned(i, centroid(i.topics(), i.sites)),
        "all_pairs": lambda i, seed: planned(i, all_pairs(i.topics(), i.clients, i.sites)),
        "refined": lambda i, seed: better(i, planned(i, all_pairs(i.topics(), i.clients, i.sites))),
        "hashed": lambda i, seed: planned(i, hashed(i.topics(), names(i), i.sites)),
    }

    def assignment(self, result: Planned) -> list[int]:
        return result.partition.site.tolist()

    def check_placed(self, instance: literal.Instance, result: Planned) -> None:
        site = result.partition.site
        assert site.shape == instance.site.shape
        assert ((site >= 0) & (site < len(instance.sites))).all()

    def check_capacity(self, instance: literal.Instance, result: Planned) -> None:
        limit = literal.limits(instance)
        for b, most in enumerate(limit):
            load = sum(r for r, host in zip(instance.rate, result.partition.site, strict=True) if host == b)
            assert load == pytest.approx(result.partition.load[b])
            assert (load > most + 1e-9) <= (b in result.partition.overloaded)

    def objective(self, instance: literal.Instance, result: Planned) -> float:
        site, limit = result.partition.site, literal.limits(instance)
        load = [sum(instance.rate[site == b]) for b in range(len(limit))]
        excess = sum(max(used - most, 0) for used, most in zip(load, limit, strict=True))
        late = [literal.worst_latency(instance, t, b) > instance.bound[t] for t, b in enumerate(site.tolist())]
        return float(np.dot(WEIGHTS, (excess, sum(late), sum(site != instance.site))))

    def reported(self, result: Planned) -> float:
        return result.cost


@given(instances())
def test_the_columns_are_algorithm_1(instance: literal.Instance) -> None:
    by_centroid = literal.algorithm_1(instance, literal.centroid_estimate)
    by_pairs = literal.algorithm_1(instance, literal.worst_latency)
    for block in (3, 4096):  # many blocks and one
        with patch.object(planners, "BLOCK", block):
            assert centroid(instance.topics(), instance.sites).site.tolist() == by_centroid
            assert all_pairs(instance.topics(), instance.clients, instance.sites).site.tolist() == by_pairs


@given(instances())
def test_a_broker_that_had_room_is_never_overloaded(instance: literal.Instance) -> None:
    limit = literal.limits(instance)
    before = [float(instance.rate[instance.site == b].sum()) for b in range(len(limit))]
    for plan in (
        centroid(instance.topics(), instance.sites),
        all_pairs(instance.topics(), instance.clients, instance.sites),
    ):
        for b in plan.overloaded:
            assert before[b] > limit[b]
            assert plan.load[b] <= before[b]


@given(instances())
def test_planning_again_finds_nothing_to_do_when_all_is_well(instance: literal.Instance) -> None:
    plan = centroid(instance.topics(), instance.sites)
    after = literal.Instance(
        instance.clients,
        PartitionSites(instance.sites.position, instance.sites.height, instance.sites.rate_limit),
        plan.site,
        instance.bound,
        instance.rate,
    )
    topics = after.topics()
    well = (topics.latency <= topics.bound).all() and (plan.load <= instance.sites.rate_limit).all()
    if well:
        assert centroid(topics, after.sites).moves == 0


def line(spots: list[float], **given: Any) -> tuple[PartitionTopics, PartitionSites]:
    """Topics whose only client stands on a line, and sites at 0 and 100."""
    count = len(spots)
    sites = PartitionSites(
        np.array([[0.0], [100.0]]),
        np.zeros(2),
        np.asarray(given.pop("limit", (100.0, 100.0))),
        np.asarray(given.pop("used", np.empty((0, 0)))),
    )
    site = np.asarray(given.pop("site", [0] * count))
    at = np.array(spots)[:, None]
    far = 2 * np.abs(at[:, 0] - sites.position[site, 0])
    topics = PartitionTopics(
        site=site,
        bound=np.asarray(given.pop("bound", [1000.0] * count)),
        rate=np.asarray(given.pop("rate", [1.0] * count)),
        producer_centroid=at,
        consumer_centroid=at,
        deviation=np.zeros(count),
        latency=np.where(site == NOWHERE, np.inf, far),
    )
    assert not given
    return topics, sites


def test_only_violating_topics_move_when_nothing_is_overloaded() -> None:
    topics, sites = line([90.0, 90.0, 10.0], bound=[50.0, 500.0, 50.0])
    assert centroid(topics, sites).site.tolist() == [1, 0, 0]


def test_without_a_feasible_broker_the_nearest_is_taken() -> None:
    topics, sites = line([70.0], bound=[1.0])
    plan = centroid(topics, sites)
    assert plan.site.tolist() == [1]
    assert plan.expected.tolist() == [60.0]


def test_the_topic_with_fewer_feasible_brokers_chooses_first() -> None:
    """Both like site 1 best and it has room for one; the first could also live with site 0."""
    topics, sites = line([60.0, 99.0], bound=[150.0, 10.0], site=[NOWHERE] * 2, limit=(9.0, 1.0))
    assert centroid(topics, sites).site.tolist() == [0, 1]


def test_an_overloaded_broker_gives_its_largest_topics_first_and_no_more_than_needed() -> None:
    topics, sites = line([0.0] * 4, rate=[10.0, 40.0, 30.0, 20.0], limit=(60.0, 100.0))
    assert centroid(topics, sites).site.tolist() == [0, 1, 0, 0]


def test_any_resource_above_its_watermark_is_an_overload() -> None:
    """At rate 100 memory is at 100 %: 85 % is reached at rate 85, whatever the limit on the rate says."""
    topics, sites = line([0.0] * 2, rate=[10.0, 90.0], limit=(500.0, 500.0), used=[[0.2, 1.0], [0.0, 0.0]])
    assert planners.current_capacity(topics, sites) == pytest.approx([85.0, 500.0])
    assert centroid(topics, sites).site.tolist() == [0, 1]


def test_a_busy_broker_without_topics_takes_none() -> None:
    topics, sites = line([90.0], bound=[50.0], used=[[0.1], [0.9]])
    assert centroid(topics, sites).site.tolist() == [0]


def test_a_topic_stays_when_nowhere_is_room_and_the_overload_is_told() -> None:
    topics, sites = line([0.0, 0.0], rate=[50.0, 60.0], limit=(100.0, 40.0))
    plan = centroid(topics, sites)
    assert plan.site.tolist() == [0, 0]
    assert plan.overloaded.tolist() == [0]


def test_the_papers_swarms_are_followed_from_zone_to_zone() -> None:
    """Section 5.1.1: zones 30 ms apart, 16 swarms of 8 with two topics each, 40 ms allowed."""
    generator = np.random.default_rng(4)
    zones = np.eye(4) * 30 / np.sqrt(2)
    sites = PartitionSites(zones, np.ones(4), np.full(4, np.inf))
    topic = np.repeat(np.arange(32), 8)
    leads = np.tile(np.arange(8) == 0, 32)
    produces = np.where(topic % 2 == 0, leads, ~leads)  # follow_leader, then sensor_data
    site = np.zeros(32, dtype=int)
    for _ in range(5):
        zone = generator.integers(0, 4, 16)[topic // 2]  # a drone has the coordinate of its zone's gateway
        clients = PartitionClients(topic, produces, ~produces, zones[zone], np.ones(len(topic)))
        topics = aggregate(clients, sites, site, np.full(32, 40.0), np.full(32, 1600.0))
        away = site != zone[::8]
        assert ((topics.latency > 40) == away).all()
        plan = centroid(topics, sites)
        assert plan.moves == away.sum()
        assert (worst_latencies(clients, sites, plan.site) <= 40).all()
        site = plan.site


def at_all_sites(topics: PartitionTopics, sites: PartitionSites) -> np.ndarray:
    return planners.centroid_latencies(topics, sites, np.arange(len(topics)))


def test_refined_makes_room_for_a_late_topic() -> None:
    """Broker 1 is full with a topic that can as well be at site 0; Algorithm 1 gives up, refined swaps."""
    topics, sites = line([99.0, 50.0], site=[0, 1], bound=[10.0, 150.0], limit=(1.0, 1.0))
    start = centroid(topics, sites)
    assert start.site.tolist() == [0, 1]
    plan = refined(topics, sites, at_all_sites(topics, sites), start)
    assert plan.site.tolist() == [1, 0]
    assert plan.expected.tolist() == [2.0, 100.0]


def test_refined_undoes_what_is_not_needed() -> None:
    topics, sites = line([1.0, 99.0], site=[0, 0], bound=[500.0, 500.0])
    start = hashed(topics, ["a", "b"], sites)
    assert start.moves > 0
    assert refined(topics, sites, at_all_sites(topics, sites), start).moves == 0


def test_refined_ends_an_overload_that_algorithm_1_leaves() -> None:
    """The topic may only be late at the other site; capacity comes before latency."""
    topics, sites = line([0.0, 0.0], rate=[3.0, 3.0], bound=[10.0, 10.0], limit=(5.0, 5.0))
    start = centroid(topics, sites)
    assert start.overloaded.tolist() == [0]
    plan = refined(topics, sites, at_all_sites(topics, sites), start)
    assert plan.overloaded.size == 0
    assert plan.moves == 1


def test_new_topics_are_placed_and_do_not_count_as_moves() -> None:
    topics, sites = line([90.0, 95.0, 99.0], site=[NOWHERE] * 3, bound=[50.0] * 3, limit=(1.0, 1.0))
    plan = centroid(topics, sites)
    assert plan.site.tolist() == [1, 0, NOWHERE]  # the second breaks its bound, the third has no room
    assert plan.moves == 0
    assert plan.expected.tolist() == [20.0, 190.0, np.inf]


def test_hashing_looks_at_the_name_only_and_spreads_evenly() -> None:
    instance = build(1, topics=12, sites=4, fill=0.5, resources=False)
    many = [f"sensor/{i}" for i in range(12)]
    assert (
        hashed(instance.topics(), many, instance.sites).site.tolist()
        == hashed(instance.topics(), many, instance.sites).site.tolist()
    )
    topics, sites = line([0.0] * 10_000)
    counts = np.bincount(hashed(topics, [f"sensor/{i}" for i in range(10_000)], sites).site)
    assert abs(counts[0] - 5_000) < 300


def test_progress_only_grows() -> None:
    seen: list[float] = []
    topics, sites = line([90.0] * 30, bound=[50.0] * 30)
    with patch.object(planners, "BLOCK", 7):
        centroid(topics, sites, seen.append)
    assert seen == sorted(seen)
    assert 0 <= seen[0] < seen[-1] <= 1
