"""Swarms by seed: when they change zone, and the true delays then."""

from __future__ import annotations

from itertools import pairwise

import pytest

from nearcast.errors import InputError
from nearcast.lab.scenarios.scenario import CLOUD
from nearcast.lab.scenarios.swarms import SwarmParameters, swarms

PARAMETERS = SwarmParameters(seconds=600.0, swarms=4, drones=3, seed=7)


def test_the_same_seed_gives_the_same_flights_and_another_seed_others() -> None:
    assert swarms(PARAMETERS).changes == swarms(PARAMETERS).changes
    assert swarms(PARAMETERS).changes != swarms(SwarmParameters(seconds=600.0, swarms=4, drones=3, seed=8)).changes


def test_a_swarm_flies_alike_whatever_the_number_of_swarms_and_seconds() -> None:
    few = swarms(SwarmParameters(seconds=300.0, swarms=2, drones=3, seed=7)).changes
    assert list(few) == [c for c in swarms(PARAMETERS).changes if c.at < 300.0 and c.subject in ("swarm0", "swarm1")]


def test_every_swarm_changes_zone_every_20_to_60_seconds() -> None:
    scenario = swarms(PARAMETERS)
    for swarm in scenario.nodes:
        changes = [change for change in scenario.changes if change.subject == swarm]
        assert changes[0].at < 60.0
        assert changes[-1].at > 600.0 - 60.0
        for earlier, later in pairwise(changes):
            assert 20.0 <= later.at - earlier.at <= 60.0
            assert earlier.target == later.source
        assert all(change.source != change.target for change in changes)


def test_delays_follow_the_zone_a_swarm_is_in() -> None:
    scenario = swarms(PARAMETERS)
    change = next(change for change in scenario.changes if change.subject == "swarm1")
    for at, zone in ((change.at - 0.001, change.source), (change.at, change.target)):
        assert scenario.nearest("swarm1", at) == zone
        assert scenario.way("swarm1", zone, at) == 10.0
        others = set(scenario.edges) - {zone}
        assert {scenario.way("swarm1", other, at) for other in others} == {25.0}
        assert scenario.way("swarm1", CLOUD, at) == 50.0
        assert scenario.best_site("swarm.1", at) == zone
        assert scenario.latency("swarm.1", zone, at) == 20.0
        assert {scenario.latency("swarm.1", other, at) for other in others} == {50.0}


def test_the_wide_area_has_the_delays_of_the_start() -> None:
    scenario = swarms(PARAMETERS)
    topology = scenario.topology()
    assert topology.link("zone0", "zone3").delay_ms == 15.0
    assert topology.link(CLOUD, "zone2").delay_ms == 40.0
    for node in scenario.nodes:
        for site in scenario.sites:
            assert topology.link(node, site).delay_ms == scenario.way(node, site, 0.0)


def test_one_zone_is_refused() -> None:
    with pytest.raises(InputError, match="zones is 1"):
        swarms(SwarmParameters(zones=1))
