"""The home of a client that registers."""

from __future__ import annotations

import msgspec
from tests.coordinator.worlds import SETTINGS, at

from nearcast.coordinator.homes import HomePolicy
from nearcast.wire.registration import ClientInfo

SITES = {"west": at(0.0), "middle": at(50.0), "east": at(100.0)}


def policy(kind: str) -> HomePolicy:
    return HomePolicy(msgspec.structs.replace(SETTINGS, homes=kind))


def test_nearest_first_and_what_could_not_be_reached_last() -> None:
    here = ClientInfo("car", coordinate=at(60.0))
    assert policy("nearest").homes(here, SITES, SITES) == ["middle", "east", "west"]
    tried = ClientInfo("car", coordinate=at(60.0), tried=["middle"])
    assert policy("nearest").homes(tried, SITES, SITES) == ["east", "west", "middle"]


def test_a_plan_goes_before_the_policy() -> None:
    here = ClientInfo("car", coordinate=at(60.0))
    assert policy("nearest").homes(here, SITES, SITES, "west")[0] == "west"


def test_round_robin_takes_turns_and_random_is_seeded() -> None:
    turns = policy("round_robin")
    assert [turns.homes(ClientInfo("c"), SITES, SITES)[0] for _ in range(4)] == ["east", "middle", "west", "east"]
    one, two = policy("random"), policy("random")
    firsts = [one.homes(ClientInfo("c"), SITES, SITES)[0] for _ in range(20)]
    assert firsts == [two.homes(ClientInfo("c"), SITES, SITES)[0] for _ in range(20)]
    assert set(firsts) == set(SITES)
