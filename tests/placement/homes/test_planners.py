"""Every home planner keeps the planners' contract, and RELOC is the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.contract import PlannerContract
from tests.placement.homes.literal import (
    LiteralReloc,
    annealed,
    literal_delay,
    literal_factors,
    literal_relation_matrix,
)
from tests.placement.homes.strategies import instances

from nearcast import InputError
from nearcast.lab.workloads.city import CityParameters, city, random_members
from nearcast.placement.homes import (
    HomesPlan,
    HomesProblem,
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
    refined_with_few_moves,
    reloc,
    reloc_steps,
)
from nearcast.placement.homes.planners import cluster_sites
from nearcast.placement.homes.relations import factors

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestContract(PlannerContract):
    instances = instances(clients=5)
    planners: ClassVar[dict[str, Any]] = {
        "random": lambda problem, seed: random(problem, seed),
        "nearest": lambda problem, seed: nearest(problem),
        "one topic, one site": lambda problem, seed: one_topic_one_site(problem),
        "reloc": lambda problem, seed: reloc(problem, RelocParameters(clusters=1, seed=seed)),
        "reloc, K chosen": lambda problem, seed: reloc(problem, RelocParameters(seed=seed)),
        "refined": lambda problem, seed: refined(problem, RefineParameters(perturbations=2, sweeps=5, seed=seed)),
    }

    @pytest.fixture(autouse=True)
    def fewer_examples(self) -> Iterator[None]:
        """Six planners and a solver per example: a dozen examples take long enough."""
        settings.register_profile("few", settings.get_profile("nearcast"), max_examples=12)
        settings.load_profile("few")
        yield
        settings.load_profile("nearcast")

    def exact(self, problem: HomesProblem) -> HomesPlan:
        return exact(problem)

    def refine(self, problem: HomesProblem, start: HomesPlan, seed: int) -> HomesPlan:
        return refine(problem, start.home, RefineParameters(perturbations=2, seed=seed))

    def assignment(self, result: HomesPlan) -> list[int]:
        return result.home.tolist()

    def check_placed(self, problem: HomesProblem, result: HomesPlan) -> None:
        assert result.home.shape == (problem.clients,)
        assert ((result.home >= 0) & (result.home < problem.sites)).all()

    def check_capacity(self, problem: HomesProblem, result: HomesPlan) -> None:
        """Sites may be asked for more than they hold; the part they keep never is."""
        assert (result.local_share * result.storage_used <= problem.storage + 1e-9).all()
        assert (result.local_share * result.compute_used <= problem.compute + 1e-9).all()
        if result.delegated_share == 0:
            busy = problem.publications.sum(axis=0)[: problem.clients] > 0
            used = np.unique(result.home[busy])
            assert (result.storage_used[used] <= problem.storage[used] + 1e-9).all()

    def objective(self, problem: HomesProblem, result: HomesPlan) -> float:
        return float(literal_delay(problem, result.home.tolist())["y"])

    def reported(self, result: HomesPlan) -> float:
        return result.delay_ms


def literal_homes(problem: HomesProblem, parameters: RelocParameters, **how: bool) -> list[Any]:
    """Algorithm 1 in plain Python; a client in no topic goes to its nearest site."""
    assert parameters.clusters is not None
    clusters = cluster_sites(problem.site_site_ms, parameters.clusters, parameters.seed).tolist()
    strength = factors(problem.members, parameters.rank, parameters.seed).tolist()
    found = LiteralReloc(problem, clusters, strength, parameters.relations).run(**how)
    near = problem.client_site_ms.argmin(axis=1).tolist()
    return [near[client] if site is None else site for client, site in enumerate(found)]


@settings(max_examples=30)
@given(instances(clients=8, sites=4, topics=4), st.data())
def test_reloc_is_algorithm_1(problem: HomesProblem, data: st.DataObject) -> None:
    clusters = data.draw(st.integers(1, problem.sites))
    parameters = RelocParameters(clusters, relations=data.draw(st.integers(0, 4)), leave_cluster=False)
    steps = reloc_steps(problem, parameters)
    assert steps.cooperation.home.tolist() == literal_homes(problem, parameters)
    assert steps.relation.home.tolist() == literal_homes(problem, parameters, cooperate=False)
    assert reloc(problem, parameters).home.tolist() == steps.cooperation.home.tolist()


@pytest.mark.parametrize("spread_km", [1.0, 10.0])
def test_reloc_is_algorithm_1_at_the_papers_size(spread_km: float) -> None:
    problem = city(random_members(64, 600, seed=1), CityParameters(spread_km=spread_km), seed=2)
    parameters = RelocParameters(clusters=4, leave_cluster=False)
    plan = reloc(problem, parameters)
    assert plan.home.tolist() == literal_homes(problem, parameters)
    assert plan.delay_ms == pytest.approx(literal_delay(problem, plan.home.tolist())["y"])


def test_the_factorisation_agrees_with_one_in_plain_python() -> None:
    members = random_members(8, 30, seed=4)
    z = literal_relation_matrix(city(members))
    plain = np.array(literal_factors(z, rank=3, iterations=300))
    ours = factors(members, rank=3, seed=0)
    np.testing.assert_allclose(ours @ ours.T, plain @ plain.T, atol=1e-3)


@pytest.mark.parametrize("spread_km", [1.0, 5.0])
def test_reloc_stays_within_the_storage_of_all_sites_when_they_are_nearly_full(spread_km: float) -> None:
    problem = city(random_members(64, 600, seed=1), CityParameters(spread_km=spread_km, spool_per_member=2.4), seed=2)
    within = reloc(problem, RelocParameters(clusters=4, leave_cluster=False))
    plan = reloc(problem, RelocParameters(clusters=4))
    assert within.storage_used.max() > problem.storage[0]
    assert plan.storage_used.max() <= problem.storage[0] * (1 + 1e-9)


def test_annealing_finds_the_plan_without_overflow_that_single_moves_do_not() -> None:
    problem = city(random_members(24, 150, seed=1), CityParameters(sites=9, storage=200.0), seed=2)
    descent = refined(problem, RefineParameters(sweeps=0))
    annealed = refined(problem, RefineParameters(sweeps=100))
    assert annealed.delay_ms < 0.99 * descent.delay_ms
    assert annealed.delegated_share <= descent.delegated_share


def test_a_farther_cloud_leads_the_search_out_of_a_plan_that_overflows() -> None:
    problem = city(random_members(16, 80, seed=3), CityParameters(sites=6, storage=160.0), seed=3)
    search = RefineParameters(sweeps=20, anneals=1, perturbations=0)
    overflows = refined(problem, replace(search, overflow_anneals=0))
    plan = refined(problem, search)
    assert overflows.delegated_share > 0
    assert plan.delegated_share == 0
    assert plan.delay_ms < overflows.delay_ms


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_refined_is_within_one_percent_of_plain_annealing_with_as_many_evaluations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parameters = CityParameters(
        sites=4, spread_km=rng.uniform(1, 20), spool_per_member=rng.uniform(1, 3), storage=rng.uniform(40, 90)
    )
    problem = city(random_members(6, 24, seed, (3, 8)), parameters, seed)
    sweeps, anneals = 100, 4
    plan = refined(problem, RefineParameters(sweeps=sweeps, anneals=anneals))
    plain = annealed(problem, anneals * sweeps * problem.clients * problem.sites, rng)
    assert plan.delay_ms <= 1.01 * evaluate(problem, plain).delay_ms


@given(instances(clients=8, sites=4, topics=4), st.integers(0, 8), st.integers(0, 2**16))
def test_few_moves_are_kept_to_and_never_make_it_worse(problem: HomesProblem, most: int, seed: int) -> None:
    current = random(problem, seed)
    plan = refined_with_few_moves(problem, current.home, most)
    assert (plan.home != current.home).sum() <= most
    assert plan.delay_ms <= current.delay_ms
    free = refined(problem, RefineParameters(sweeps=2, perturbations=1), current=current.home)
    assert free.delay_ms <= current.delay_ms


def test_table_1_cooperation_brings_the_sites_within_their_limits() -> None:
    """N = 1, L = 16, A = 7, B = 20, K = 4, σ = 10, p = 1: seven members, one spool of seven."""
    members = membership([0] * 7, range(7), (1, 7))
    table_1 = CityParameters(spread_km=10, spool_per_member=1, storage=7, compute=20)
    problem = city(members, table_1, seed=5)
    steps = reloc_steps(problem, RelocParameters(clusters=4))
    nearest_cluster = steps.site_cluster[problem.client_site_ms.argmin(axis=1)]
    for plan in (steps.locality, steps.relation, steps.cooperation):
        np.testing.assert_array_equal(steps.site_cluster[plan.home], nearest_cluster)
    # Relation: one site per cluster, as long as it has room. Two publishers of 7 fit 20, a third does not.
    assert (steps.cooperation.compute_used <= 20).all()
    assert (steps.cooperation.storage_used <= 7).all()
    assert steps.cooperation.delegated_share == 0
    assert steps.relation.delegated_share > 0
    assert steps.relation.storage_used.sum() < steps.locality.storage_used.sum()


def test_clusters_of_a_plane_are_those_of_the_positions() -> None:
    problem = city(random_members(4, 20, seed=0), CityParameters(sites=16))
    label = cluster_sites(problem.site_site_ms, 4).reshape(4, 4)
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


@pytest.mark.parametrize("spread_km", [1.0, 5.0])
def test_the_chosen_k_is_no_worse_than_nearest_or_the_usual_k(spread_km: float) -> None:
    problem = city(random_members(64, 600, seed=1), CityParameters(spread_km=spread_km), seed=2)
    chosen = reloc(problem).delay_ms
    assert chosen <= nearest(problem).delay_ms
    assert all(chosen <= reloc(problem, RelocParameters(clusters=k)).delay_ms for k in (1, 4, 16))


@pytest.mark.parametrize("clusters", [0, 17])
def test_impossible_clusters_are_refused(clusters: int) -> None:
    problem = city(random_members(4, 20, seed=0))
    with pytest.raises(InputError, match=f"{clusters} clusters of 16 sites"):
        reloc(problem, RelocParameters(clusters=clusters))


def test_one_topic_one_site_holds_every_spool_once_when_nobody_is_in_two_topics() -> None:
    members = membership(np.repeat(np.arange(10), 6), np.arange(60), (10, 60))
    problem = city(members, CityParameters(spread_km=15), seed=1)
    plan = one_topic_one_site(problem)
    assert plan.storage_used.sum() == problem.spool_size.sum()
    assert plan.storage_used.sum() < nearest(problem).storage_used.sum()


def test_refined_beats_the_papers_methods_where_sites_are_tight() -> None:
    problem = city(random_members(64, 600, seed=1), CityParameters(spread_km=10), seed=2)
    best = min(plan.delay_ms for plan in (nearest(problem), one_topic_one_site(problem), reloc(problem)))
    assert refined(problem).delay_ms < 0.9 * best


def test_a_trade_is_found_where_no_single_move_helps() -> None:
    """Two full sites, two clients at the wrong one: each can only move if the other does."""
    problem = HomesProblem(
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
    assert refine(problem, start, RefineParameters(swap_trials=0, perturbations=0)).home.tolist() == [0, 1]
    assert refine(problem, start, RefineParameters(perturbations=0)).home.tolist() == [1, 0]


def test_progress_is_told() -> None:
    problem = city(random_members(10, 60, seed=1))
    told: list[float] = []
    reloc(problem, advance=told.append)
    refined(problem, RefineParameters(sweeps=20), advance=told.append)
    assert told
    assert all(0 <= fraction <= 1 for fraction in told)
    assert max(told) > 0


def test_clients_without_topics_go_to_the_nearest_site() -> None:
    problem = HomesProblem(
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
        one_topic_one_site(problem),
        reloc(problem, RelocParameters(clusters=1)),
        refined(problem),
    ):
        assert plan.home.tolist() == [1, 0]
        assert plan.delay_ms == evaluate(problem, plan.home).delay_ms == 0.0


def test_nobody_there_is_a_plan_too() -> None:
    nobody = membership([], [], (1, 0))
    empty = HomesProblem(np.zeros((0, 2)), np.zeros((2, 2)), 5.0, np.ones(2), np.ones(2), np.ones(1), nobody, nobody)
    for plan in (random(empty), nearest(empty), one_topic_one_site(empty), reloc(empty), refined(empty)):
        assert plan.home.shape == (0,)
        assert plan.delay_ms == 0.0
