"""Every home planner keeps the planners' contract, and RELOC is the paper's Algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.contract import PlannerContract
from tests.placement.homes.literal import (
    LiteralReloc,
    literal_delay,
    literal_factors,
    literal_relation_matrix,
)
from tests.placement.homes.strategies import instances

from nearcast import InputError
from nearcast.placement.homes import (
    HomesInstance,
    HomesPlan,
    RefineParameters,
    RelocParameters,
    evaluate,
    exact,
    membership,
    nearest,
    one_topic_one_site,
    random,
    refine,
    refined,
    reloc,
    reloc_steps,
)
from nearcast.placement.homes.city import CityParameters, city, random_members
from nearcast.placement.homes.relations import factors
from nearcast.placement.homes.reloc import cluster_sites

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestContract(PlannerContract):
    instances = instances(clients=5)
    planners: ClassVar[dict[str, Any]] = {
        "random": lambda instance, seed: random(instance, seed),
        "nearest": lambda instance, seed: nearest(instance),
        "one topic, one site": lambda instance, seed: one_topic_one_site(instance),
        "reloc": lambda instance, seed: reloc(instance, RelocParameters(clusters=1, seed=seed)),
        "reloc, K chosen": lambda instance, seed: reloc(instance, RelocParameters(seed=seed)),
        "refined": lambda instance, seed: refined(instance, RefineParameters(kicks=2, seed=seed)),
    }

    @pytest.fixture(autouse=True)
    def fewer_examples(self) -> Iterator[None]:
        """Six planners and a solver per example: a dozen examples take long enough."""
        settings.register_profile("few", settings.get_profile("nearcast"), max_examples=12)
        settings.load_profile("few")
        yield
        settings.load_profile("nearcast")

    def exact(self, instance: HomesInstance) -> HomesPlan:
        return exact(instance)

    def refine(self, instance: HomesInstance, start: HomesPlan, seed: int) -> HomesPlan:
        return refine(instance, start.home, RefineParameters(kicks=2, seed=seed))

    def assignment(self, result: HomesPlan) -> list[int]:
        return result.home.tolist()

    def check_placed(self, instance: HomesInstance, result: HomesPlan) -> None:
        assert result.home.shape == (instance.clients,)
        assert ((result.home >= 0) & (result.home < instance.sites)).all()

    def check_capacity(self, instance: HomesInstance, result: HomesPlan) -> None:
        """Sites may be asked for more than they hold; the part they keep never is."""
        assert (result.local_share * result.storage_used <= instance.storage + 1e-9).all()
        assert (result.local_share * result.compute_used <= instance.compute + 1e-9).all()
        if result.delegated_share == 0:
            busy = instance.publications.sum(axis=0)[: instance.clients] > 0
            used = np.unique(result.home[busy])
            assert (result.storage_used[used] <= instance.storage[used] + 1e-9).all()

    def objective(self, instance: HomesInstance, result: HomesPlan) -> float:
        return float(literal_delay(instance, result.home.tolist())["y"])

    def reported(self, result: HomesPlan) -> float:
        return result.delay_ms


def literal_homes(instance: HomesInstance, parameters: RelocParameters, **how: bool) -> list[Any]:
    """Algorithm 1 in plain Python; a client in no topic goes to its nearest site."""
    assert parameters.clusters is not None
    clusters = cluster_sites(instance.site_site_ms, parameters.clusters, parameters.seed).tolist()
    strength = factors(instance.members, parameters.rank, parameters.seed).tolist()
    found = LiteralReloc(instance, clusters, strength, parameters.relations).run(**how)
    near = instance.client_site_ms.argmin(axis=1).tolist()
    return [near[client] if site is None else site for client, site in enumerate(found)]


@settings(max_examples=30)
@given(instances(clients=8, sites=4, topics=4), st.data())
def test_reloc_is_algorithm_1(instance: HomesInstance, data: st.DataObject) -> None:
    clusters = data.draw(st.integers(1, instance.sites))
    parameters = RelocParameters(clusters, relations=data.draw(st.integers(0, 4)))
    steps = reloc_steps(instance, parameters)
    assert steps.cooperation.home.tolist() == literal_homes(instance, parameters)
    assert steps.relation.home.tolist() == literal_homes(instance, parameters, cooperate=False)
    assert reloc(instance, parameters).home.tolist() == steps.cooperation.home.tolist()


@pytest.mark.parametrize("spread_km", [1.0, 10.0])
def test_reloc_is_algorithm_1_at_the_papers_size(spread_km: float) -> None:
    instance = city(random_members(64, 600, seed=1), CityParameters(spread_km=spread_km), seed=2)
    plan = reloc(instance, RelocParameters(clusters=4))
    assert plan.home.tolist() == literal_homes(instance, RelocParameters(clusters=4))
    assert plan.delay_ms == pytest.approx(literal_delay(instance, plan.home.tolist())["y"])


def test_the_factorisation_agrees_with_one_in_plain_python() -> None:
    members = random_members(8, 30, seed=4)
    z = literal_relation_matrix(city(members))
    plain = np.array(literal_factors(z, rank=3, iterations=300))
    ours = factors(members, rank=3, seed=0)
    np.testing.assert_allclose(ours @ ours.T, plain @ plain.T, atol=1e-3)


def test_table_1_cooperation_brings_the_sites_within_their_limits() -> None:
    """N = 1, L = 16, A = 7, B = 20, K = 4, σ = 10, p = 1: seven members, one spool of seven."""
    members = membership([0] * 7, range(7), (1, 7))
    table_1 = CityParameters(spread_km=10, spool_per_member=1, storage=7, compute=20)
    instance = city(members, table_1, seed=5)
    steps = reloc_steps(instance, RelocParameters(clusters=4))
    nearest_cluster = steps.site_cluster[instance.client_site_ms.argmin(axis=1)]
    for plan in (steps.locality, steps.relation, steps.cooperation):
        np.testing.assert_array_equal(steps.site_cluster[plan.home], nearest_cluster)
    # Relation: one site per cluster, as long as it has room. Two publishers of 7 fit 20, a third does not.
    assert (steps.cooperation.compute_used <= 20).all()
    assert (steps.cooperation.storage_used <= 7).all()
    assert steps.cooperation.delegated_share == 0
    assert steps.relation.delegated_share > 0
    assert steps.relation.storage_used.sum() < steps.locality.storage_used.sum()


def test_clusters_of_a_plane_are_those_of_the_positions() -> None:
    instance = city(random_members(4, 20, seed=0), CityParameters(sites=16))
    label = cluster_sites(instance.site_site_ms, 4).reshape(4, 4)
    quarters = [label[:2, :2], label[:2, 2:], label[2:, :2], label[2:, 2:]]
    assert all(len(np.unique(quarter)) == 1 for quarter in quarters)
    assert len(np.unique(label)) == 4


def test_clusters_of_any_delays_keep_near_sites_together() -> None:
    near, far = 1.0, 50.0
    delays = np.full((6, 6), far)
    for group in ([0, 3, 5], [1, 2, 4]):
        delays[np.ix_(group, group)] = near
    np.fill_diagonal(delays, 0)
    label = cluster_sites(delays, 2)
    assert label[0] == label[3] == label[5] != label[1] == label[2] == label[4]


def test_sites_at_one_place_can_still_be_clustered() -> None:
    assert cluster_sites(np.zeros((5, 5)), 3).tolist() == [0] * 5


@pytest.mark.parametrize("spread_km", [1.0, 5.0, 20.0])
def test_the_chosen_k_is_no_worse_than_nearest_or_the_usual_k(spread_km: float) -> None:
    instance = city(random_members(64, 600, seed=1), CityParameters(spread_km=spread_km), seed=2)
    chosen = reloc(instance).delay_ms
    assert chosen <= nearest(instance).delay_ms
    assert all(chosen <= reloc(instance, RelocParameters(clusters=k)).delay_ms for k in (1, 4, 16))


@pytest.mark.parametrize("clusters", [0, 17])
def test_impossible_clusters_are_refused(clusters: int) -> None:
    instance = city(random_members(4, 20, seed=0))
    with pytest.raises(InputError, match=f"{clusters} clusters of 16 sites"):
        reloc(instance, RelocParameters(clusters=clusters))


def test_one_topic_one_site_holds_every_spool_once_when_nobody_is_in_two_topics() -> None:
    members = membership(np.repeat(np.arange(10), 6), np.arange(60), (10, 60))
    instance = city(members, CityParameters(spread_km=15), seed=1)
    plan = one_topic_one_site(instance)
    assert plan.storage_used.sum() == instance.spool_size.sum()
    assert plan.storage_used.sum() < nearest(instance).storage_used.sum()


def test_refined_beats_the_papers_methods_where_sites_are_tight() -> None:
    instance = city(random_members(64, 600, seed=1), CityParameters(spread_km=10), seed=2)
    best = min(plan.delay_ms for plan in (nearest(instance), one_topic_one_site(instance), reloc(instance)))
    assert refined(instance).delay_ms < 0.9 * best


def test_a_trade_is_found_where_no_single_move_helps() -> None:
    """Two full sites, two clients at the wrong one: each can only move if the other does."""
    instance = HomesInstance(
        client_site_ms=np.array([[1.0, 0.0], [0.0, 1.0]]),
        site_site_ms=np.array([[0.0, 0.1], [0.1, 0.0]]),
        cloud_ms=50.0,
        storage=np.array([1.0, 1.0]),
        compute=np.array([1.0, 1.0]),
        spool_size=np.array([1.0, 1.0]),
        publications=membership([0, 1], [0, 1], (2, 2)),
        subscriptions=membership([0, 1], [1, 0], (2, 2)),
    )
    start = np.array([0, 1])
    assert refine(instance, start, RefineParameters(swap_trials=0, kicks=0)).home.tolist() == [0, 1]
    assert refine(instance, start, RefineParameters(kicks=0)).home.tolist() == [1, 0]


def test_progress_is_told() -> None:
    instance = city(random_members(10, 60, seed=1))
    told: list[float] = []
    reloc(instance, advance=told.append)
    refined(instance, advance=told.append)
    assert told
    assert all(0 <= fraction <= 1 for fraction in told)
    assert max(told) > 0


def test_clients_without_topics_go_to_the_nearest_site() -> None:
    instance = HomesInstance(
        np.array([[1.0, 0.0], [0.0, 1.0]]),
        np.array([[0.0, 1.0], [1.0, 0.0]]),
        5.0,
        np.ones(2),
        np.ones(2),
        np.ones(1),
        membership([], [], (1, 2)),
        membership([], [], (1, 2)),
    )
    for plan in (
        one_topic_one_site(instance),
        reloc(instance, RelocParameters(clusters=1)),
        refined(instance),
    ):
        assert plan.home.tolist() == [1, 0]
        assert plan.delay_ms == evaluate(instance, plan.home).delay_ms == 0.0


def test_nobody_there_is_a_plan_too() -> None:
    nobody = membership([], [], (1, 0))
    empty = HomesInstance(np.zeros((0, 2)), np.zeros((2, 2)), 5.0, np.ones(2), np.ones(2), np.ones(1), nobody, nobody)
    for plan in (random(empty), nearest(empty), one_topic_one_site(empty), reloc(empty), refined(empty)):
        assert plan.home.shape == (0,)
        assert plan.delay_ms == 0.0
