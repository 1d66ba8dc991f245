"""Planning, assignment, failures and changed demand beyond the worked example."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from scipy.sparse import csr_array
from tests.placement.storage.literal import networks

from nearcast import InputError
from nearcast.lab.workloads.content import popularity, random_tree, zipf_demand
from nearcast.placement import storage


def paper_problem(seed: int, *, popularity: float, min_replicas: int = 1) -> storage.StorageProblem:
    """Section 6.1.2 in small: uniform locality, a predefined number of stores."""
    rng = np.random.default_rng(seed)
    network = random_tree(60, rng)
    demand = zipf_demand(network, 10, rng, popularity_exponent=popularity)
    replicas = storage.weighted_degrees(storage.topic_weights(demand), min_replicas, 20, 5)
    return storage.StorageProblem(network, demand, 20, 5, replicas)


@given(networks(costs=True))
def test_hops_are_the_links_of_the_cheapest_path(network: storage.Network) -> None:
    for origin in range(network.nodes):
        for node in range(network.nodes):
            hops, at = 0, node
            while at != origin:
                at, hops = int(network.next_hop[origin, at]), hops + 1
            assert network.hops[origin, node] == hops


def test_a_sparse_matrix_is_a_network_and_a_cheap_detour_is_taken() -> None:
    graph = csr_array(np.array([[0, 9, 2], [0, 0, 3], [0, 0, 0]], dtype=float))
    network = storage.network(graph)
    assert network.distance[0, 1] == 5
    assert network.hops[0, 1] == 2


def test_a_network_in_two_parts_is_refused() -> None:
    with pytest.raises(InputError, match="node 2 cannot be reached from node 0"):
        storage.from_edges(4, np.array([0, 2]), np.array([1, 3]))


def test_the_proposed_algorithm_lies_between_random_and_unconstrained_greedy() -> None:
    random = wrr = free = 0.0
    for seed in range(3):
        problem = paper_problem(seed, popularity=0.8)
        random += storage.random(problem, seed).mean_hops
        wrr += storage.wrr(problem).mean_hops
        free += storage.greedy_unconstrained(problem).mean_hops
    assert free < wrr < random


def test_unconstrained_greedy_uses_the_favourites_of_step_1() -> None:
    problem = paper_problem(0, popularity=0.5)
    votes = storage.plan_stores(problem).votes
    plan = storage.greedy_unconstrained(problem)
    for topic, count in enumerate(problem.replicas):
        assert plan.placed[topic].sum() == count
        assert votes[topic, plan.placed[topic]].min() >= votes[topic, ~plan.placed[topic]].max()


@pytest.mark.parametrize("assign", [storage.sequential, storage.wrr])
def test_on_a_ring_where_all_nodes_are_equal_the_stores_are_spread(assign: object) -> None:
    nodes = np.arange(40)
    network = storage.from_edges(40, nodes, (nodes + 1) % 40)
    problem = storage.StorageProblem(network, np.ones((4, 40)), 8, 2, np.full(4, 4))
    plan = assign(problem)  # type: ignore[operator]
    assert np.diff(np.sort(plan.stores), append=40 + plan.stores.min()).max() <= 12  # 24 when the lowest numbers win
    assert plan.mean_hops < 4.0  # 2.5 with the four replicas of a topic at equal distances; it was 5.5


def test_filled_stores_of_equal_topics_are_better_used_than_at_random() -> None:
    random = searched = 0.0
    for seed in range(3):
        problem = paper_problem(seed, popularity=0.0)
        assert problem.replicas.tolist() == [10] * 10  # every place of the 20 stores is used
        random += storage.random(problem, seed).mean_hops
        searched += storage.refined(problem, storage.wrr(problem)).mean_hops
    assert searched < 0.9 * random


def test_reassignment_keeps_the_stores_and_regains_what_changed_demand_cost() -> None:
    before = paper_problem(1, popularity=-1.0)
    plan = storage.wrr(before)
    demand = before.demand[::-1].copy()  # the popularity pattern is turned round
    replicas = storage.weighted_degrees(storage.topic_weights(demand), 1, 20, 5)
    changed = storage.StorageProblem(before.network, demand, 20, 5, replicas)
    stale = storage.evaluate(changed, plan.stores, plan.placed)
    for method in ("sequential", "wrr"):
        again = storage.reassign(changed, plan.stores, method)  # type: ignore[arg-type]
        assert again.stores.tolist() == plan.stores.tolist()
        assert not np.delete(again.placed, plan.stores, axis=1).any()
        assert again.traffic < stale.traffic


def test_after_a_failure_the_stores_left_hold_every_topic_again_with_fewer_hops() -> None:
    problem = paper_problem(3, popularity=0.8, min_replicas=2)
    plan = storage.refined(problem, storage.wrr(problem), min_replicas=2, failure=0.25)
    lost = plan.stores[:8]
    left = np.setdiff1d(plan.stores, lost)
    replicas = storage.weighted_degrees(storage.topic_weights(problem.demand), 2, len(left), 5)
    survivors = dataclasses.replace(problem, stores=len(left), replicas=replicas)
    again = storage.reassign(survivors, left, "refined", current=plan.placed, min_replicas=2)
    assert not np.delete(again.placed, left, axis=1).any()
    assert again.placed.sum(axis=1).min() >= 2
    assert again.placed.sum(axis=0).max() <= 5
    assert again.mean_hops < storage.fail(problem, plan.placed, lost).mean_hops


def test_lost_replicas_are_made_anew_and_what_is_left_stays() -> None:
    """Three stores on a path held both topics; the last one is lost, and with it the only replica of the second."""
    network = storage.from_edges(5, np.arange(4), np.arange(1, 5))
    demand = np.array([[1.0, 1, 1, 1, 1], [0, 0, 0, 0, 3]])
    problem = storage.StorageProblem(network, demand, 2, 1, np.array([1, 1]))
    current = np.zeros((2, 5), dtype=bool)
    current[0, [0, 2]] = current[1, 4] = True
    again = storage.reassign(problem, np.array([0, 2]), current=current, min_replicas=1)
    assert np.argwhere(again.placed).tolist() == [[0, 0], [1, 2]]  # the first topic gives way where that costs least


def test_a_plan_without_room_for_the_lost_replicas_is_planned_anew() -> None:
    network = storage.from_edges(3, np.array([0, 1]), np.array([1, 2]))
    problem = storage.StorageProblem(network, np.ones((2, 3)), 1, 2, np.array([1, 1]))
    current = np.zeros((2, 3), dtype=bool)
    current[0, 1] = current[1, 0] = True
    assert storage.reassign(problem, np.array([1]), current=current).placed[:, 1].all()
    with pytest.raises(storage.StorageInfeasibleError):
        dataclasses.replace(problem, capacity=1)


def test_failures_send_requests_to_the_nearest_store_online() -> None:
    network = storage.from_edges(5, np.arange(4), np.arange(1, 5))
    demand = np.array([[2.0, 0, 0, 0, 1], [0, 3, 0, 0, 0]])
    problem = storage.StorageProblem(network, demand, 2, 2, np.array([2, 1]))
    placed = np.zeros((2, 5), dtype=bool)
    placed[0, [0, 4]] = placed[1, 0] = True
    assert storage.evaluate(problem, [0, 4], placed).traffic == 3
    left = storage.fail(problem, placed, [0])
    assert left.traffic == 2 * 4
    assert left.mean_hops == pytest.approx(8 / 3)
    assert left.unserved == pytest.approx(3 / 6)
    assert storage.fail(problem, placed, [0, 4]) == storage.Failure(0.0, 0.0, 1.0)


def test_more_failures_never_shorten_the_way() -> None:
    problem = paper_problem(2, popularity=0.8, min_replicas=5)
    plan = storage.wrr(problem)
    served = [storage.fail(problem, plan.placed, plan.stores[:n]) for n in range(0, 10, 3)]
    assert [s.unserved for s in served] == sorted(s.unserved for s in served)
    full = [s.mean_hops for s in served if s.unserved == 0]
    assert len(full) > 1
    assert full == sorted(full)


def test_a_full_store_makes_room_by_exchange() -> None:
    # Sequential order leaves the last topic two slots at one store: another topic must move.
    network = storage.from_edges(3, np.array([0, 1]), np.array([1, 2]))
    demand = np.array([[9.0, 0, 0], [8, 0, 0], [0, 0, 1]])
    problem = storage.StorageProblem(network, demand, 3, 2, np.array([2, 1, 3]))
    plan = storage.sequential(problem)
    assert plan.placed.sum(axis=1).tolist() == [2, 1, 3]
    assert plan.placed.sum(axis=0).tolist() == [2, 2, 2]


def test_sizes_that_fit_only_largest_first_are_packed() -> None:
    network = storage.from_edges(2, np.array([0]), np.array([1]))
    # The popular small topics would take both stores' room from the large ones.
    demand = np.array([[9.0, 9], [9, 9], [1, 1], [1, 1]])
    sizes = np.array([2.0, 2, 3, 3])
    problem = storage.StorageProblem(network, demand, 2, 5, np.ones(4, dtype=int), sizes)
    for plan in (storage.sequential(problem), storage.wrr(problem), storage.random(problem, 0)):
        assert (sizes @ plan.placed).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"stores": 9}, "9 stores are asked for; the network has 3 nodes"),
        ({"replicas": np.array([1, 3])}, "topic 1 is to have 3 replicas; with 2 stores 1 to 2 are possible"),
        ({"sizes": np.array([1.0, 5.0])}, "topic 1 has size 5, a store holds 2"),
        ({"replicas": np.array([2, 2]), "capacity": 1.0}, "the replicas need 4, 2 stores of 1 have 2"),
    ],
)
def test_the_impossible_is_refused(change: dict[str, object], reason: str) -> None:
    network = storage.from_edges(3, np.array([0, 1]), np.array([1, 2]))
    asked: dict[str, object] = {"stores": 2, "capacity": 2.0, "replicas": np.array([1, 1])}
    with pytest.raises(InputError, match=reason):
        storage.StorageProblem(network, np.ones((2, 3)), **{**asked, **change})  # type: ignore[arg-type]


def test_sizes_nobody_can_pack_are_refused() -> None:
    network = storage.from_edges(2, np.array([0]), np.array([1]))
    problem = storage.StorageProblem(network, np.ones((3, 2)), 2, 3, np.ones(3, dtype=int), np.full(3, 2.0))
    for plan in (storage.wrr, storage.exact):
        with pytest.raises(InputError, match="capacity too small"):
            plan(problem)


def test_the_papers_workload() -> None:
    rng = np.random.default_rng(0)
    network = random_tree(40, rng)
    demand = zipf_demand(network, 10, rng, popularity_exponent=1.0, locality_exponent=1.0)
    asking = (demand > 0).sum(axis=1)
    np.testing.assert_array_equal(asking, np.ceil(popularity(10, 1.0) * 40))
    np.testing.assert_allclose(demand.max(axis=1), 25 * popularity(10, 1.0))
    assert popularity(4, -1.0).argmax() == 3
