"""Schedules of faults: the same for a seed, every kind before any comes again, and true about what they touch."""

from __future__ import annotations

from nearcast.lab.chaos.deployment import SITES, STORES, TOPICS, client_jobs, topology
from nearcast.lab.chaos.faults import role_of
from nearcast.lab.chaos.schedule import KINDS, PHASES, QUICK_PHASES, make_schedule


def test_a_seed_gives_the_same_faults_and_another_seed_others() -> None:
    assert make_schedule(7, 10, PHASES) == make_schedule(7, 10, PHASES)
    assert make_schedule(7, 10, PHASES) != make_schedule(8, 10, PHASES)
    assert make_schedule(7, 10, PHASES)[:3] == make_schedule(7, 3, PHASES)


def test_every_kind_comes_once_before_any_comes_again() -> None:
    faults = make_schedule(3, 2 * len(KINDS), PHASES)
    assert {fault.kind for fault in faults[: len(KINDS)]} == set(KINDS)
    assert {fault.kind for fault in faults[len(KINDS) :]} == set(KINDS)


def test_twenty_seeds_of_four_minutes_bring_every_kind() -> None:
    count = PHASES.faults_within(240)
    assert count >= 5
    assert {fault.kind for seed in range(1, 21) for fault in make_schedule(seed, count, PHASES)} == set(KINDS)


def test_the_driver_is_harmed_only_when_there_is_one() -> None:
    every = {fault.kind for fault in make_schedule(1, len(KINDS) + 2, PHASES, cluster=True)}
    assert every == {*KINDS, "kill driver", "stop driver"}


def test_faults_are_about_nodes_and_stores_there_are() -> None:
    nodes = set(topology().nodes)
    for seed in range(50):
        for fault in make_schedule(seed, 12, PHASES):
            assert set(fault.touches) <= nodes
            assert set(fault.stores) <= set(STORES)
            assert PHASES.shortest_fault <= fault.seconds <= PHASES.longest_fault
            if fault.kind != "false clock":
                assert set(fault.target) <= nodes


def test_three_quick_faults_take_less_than_two_minutes() -> None:
    longest = QUICK_PHASES.longest_fault + QUICK_PHASES.recovery
    assert QUICK_PHASES.warm_up + QUICK_PHASES.steady + 3 * longest <= 120


def test_every_durable_topic_has_a_store_to_spare() -> None:
    for topic in TOPICS:
        assert not topic.quorum or len(topic.replicas) > topic.quorum
        assert set(topic.replicas) <= set(STORES)
        assert set(topic.managed_by) <= set(SITES)


def test_clients_have_names_of_their_own() -> None:
    jobs = client_jobs(lambda site: f"nats://{site}:4222")
    names = [one.name for publishers, subscribers in jobs.values() for one in (*publishers, *subscribers)]
    assert len(set(names)) == len(names)
    assert set(jobs) <= set(topology().nodes)


def test_a_process_that_is_gone_has_no_role() -> None:
    assert role_of(2**22 + 1) == ""
