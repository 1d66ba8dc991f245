"""Avatars by seed: who subscribes to whom when, and the true delays."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from nearcast.errors import InputError
from nearcast.lab.scenarios.game import game
from nearcast.lab.scenarios.policies import Oracle, starting_places
from nearcast.lab.scenarios.scenario import CLOUD, Scenario
from nearcast.lab.workloads.formats import Cities
from nearcast.lab.workloads.game import GameParameters, generate_cities

PARAMETERS = GameParameters(duration_s=120.0, avatars=12, groups=3, seed=4)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return game(generate_cities(), PARAMETERS, "made up")


def test_the_same_seed_gives_the_same_game() -> None:
    one, other = (game(generate_cities(), PARAMETERS, "made up") for _ in range(2))
    assert one.changes == other.changes
    assert one.participants == other.participants


def test_an_avatar_changes_its_group_every_30_to_60_seconds(scenario: Scenario) -> None:
    times = defaultdict(lambda: [0.0])
    for change in scenario.changes:
        times[change.subject].append(change.at)
    assert set(times) == set(scenario.topics)
    assert all(30.0 <= gap <= 60.0 for at in times.values() for gap in np.diff(at))


def test_everybody_subscribes_to_the_others_of_the_group_at_every_moment(scenario: Scenario) -> None:
    def subscriptions(at: float) -> dict[str, set[str]]:
        return {
            p.topic: {span.topic for span in p.subscribes if span.start <= at < span.end} for p in scenario.participants
        }

    for at in [0.0, *(change.at for change in scenario.changes), 119.9]:
        groups = {frozenset(others | {topic}) for topic, others in subscriptions(at).items()}
        assert sum(len(group) for group in groups) == len(scenario.topics)  # they share no avatar
        assert len(groups) <= 3


def test_a_change_affects_the_topics_that_gain_a_subscriber(scenario: Scenario) -> None:
    for change in scenario.changes:
        gained = {
            topic
            for participant in scenario.participants
            for topic in (span.topic for span in participant.subscribes if span.start == change.at)
        }
        assert gained <= set(change.affected)
        assert set(change.affected) == gained | {change.subject}


def test_delays_are_those_of_the_cities() -> None:
    rtt = np.array([[0.0, 40.0, 60.0], [40.0, 0.0, 80.0], [60.0, 80.0, 0.0]])
    known = Cities(["New York", "Dallas", "St. Louis"], np.zeros(3), np.zeros(3), rtt, {})
    scenario = game(known, GameParameters(duration_s=60.0, avatars=6, groups=2, cities=3), "made up")
    assert set(scenario.edges) == {"NewYork", "Dallas", "StLouis"}
    topology = scenario.topology()
    assert topology.link("Dallas", "StLouis").delay_ms == 40.0
    assert topology.link("players-Dallas", "Dallas").delay_ms == 5.0
    assert topology.link("players-Dallas", "StLouis").delay_ms == 45.0
    assert topology.link("NewYork", CLOUD).delay_ms == 1.0
    assert topology.link("Dallas", CLOUD).delay_ms == 21.0


def test_the_oracle_keeps_every_topic_within_its_bound_with_few_moves(scenario: Scenario) -> None:
    places = starting_places("fixed", scenario)
    oracle = Oracle(scenario, places)
    at = dict(places.topics)
    for change in scenario.changes:
        for move in oracle.at_change(change):
            assert move.kind == "topic"
            at[move.subject] = move.target
        assert all(scenario.latency(topic, site, change.at) <= 100.0 for topic, site in at.items())


def test_one_city_is_refused() -> None:
    with pytest.raises(InputError, match="cities is 1"):
        game(generate_cities(), GameParameters(cities=1), "made up")
