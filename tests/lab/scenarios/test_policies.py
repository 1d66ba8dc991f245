"""Where policies put topics and clients."""

from __future__ import annotations

from collections import Counter

from nearcast.lab.scenarios.policies import Oracle, consistent_hash, starting_places
from nearcast.lab.scenarios.swarms import SwarmParameters, swarms

SCENARIO = swarms(SwarmParameters(seconds=300.0, swarms=3, drones=2))


def test_consistent_hashing_spreads_names_and_moves_few_when_a_site_goes() -> None:
    sites = ["a", "b", "c", "d"]
    names = [f"topic.{n}" for n in range(2000)]
    before = {name: consistent_hash(name, sites) for name in names}
    assert all(300 < count < 700 for count in Counter(before.values()).values())
    after = {name: consistent_hash(name, sites[:3]) for name in names}
    assert all(after[name] == site for name, site in before.items() if site != "d")


def test_fixed_is_the_best_place_at_the_start() -> None:
    places = starting_places("fixed", SCENARIO)
    assert places.homes is not None
    for participant in SCENARIO.participants:
        nearest = SCENARIO.nearest(participant.node, 0.0)
        assert places.homes[participant.name] == nearest
        assert places.topics[participant.topic] == nearest


def test_a_coordinator_is_told_nothing_about_places() -> None:
    for policy in ("nearcast", "paper", "oracle"):
        places = starting_places(policy, SCENARIO)
        assert places.homes is None
        assert places.topics == starting_places("hash", SCENARIO).topics


def test_the_oracle_moves_a_swarm_and_its_topic_at_the_moment_of_the_change() -> None:
    oracle = Oracle(SCENARIO, starting_places("oracle", SCENARIO))
    at = {move.subject: move.target for move in oracle.at_start()}
    for participant in SCENARIO.participants:
        assert at[participant.name] == SCENARIO.nearest(participant.node, 0.0)
    for change in SCENARIO.changes:
        moves = oracle.at_change(change)
        assert {move.target for move in moves} == {change.target}
        drones = {p.name for p in SCENARIO.participants if p.node == change.node}
        assert {move.subject for move in moves} == drones | set(change.topics)


def test_the_oracle_leaves_a_topic_that_keeps_its_bound() -> None:
    easy = swarms(SwarmParameters(seconds=300.0, swarms=1, drones=2, bound_ms=60.0))
    oracle = Oracle(easy, starting_places("fixed", easy))
    assert not oracle.at_start()
    assert {move.kind for change in easy.changes for move in oracle.at_change(change)} == {"client"}
