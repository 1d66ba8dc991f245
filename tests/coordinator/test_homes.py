"""The home of a client that registers."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from tests.coordinator.worlds import SETTINGS, World, at

from nearcast.coordinator.homes import HomePolicy, reloc_homes
from nearcast.protocol.registration import ClientRecord

SITES = {"west": at(0.0), "middle": at(50.0), "east": at(100.0)}


def policy(kind: str) -> HomePolicy:
    return HomePolicy(msgspec.structs.replace(SETTINGS, homes=kind))


def test_nearest_first_and_what_could_not_be_reached_last() -> None:
    here = ClientRecord("car", coordinate=at(60.0))
    assert policy("nearest").homes(here, SITES, SITES) == ["middle", "east", "west"]
    tried = ClientRecord("car", coordinate=at(60.0), tried=["middle"])
    assert policy("nearest").homes(tried, SITES, SITES) == ["east", "west", "middle"]


def test_a_plan_goes_before_the_policy() -> None:
    here = ClientRecord("car", coordinate=at(60.0))
    assert policy("nearest").homes(here, SITES, SITES, "west")[0] == "west"


def test_round_robin_takes_turns_and_random_is_seeded() -> None:
    turns = policy("round_robin")
    assert [turns.homes(ClientRecord("c"), SITES, SITES)[0] for _ in range(4)] == ["east", "middle", "west", "east"]
    one, two = policy("random"), policy("random")
    firsts = [one.homes(ClientRecord("c"), SITES, SITES)[0] for _ in range(20)]
    assert firsts == [two.homes(ClientRecord("c"), SITES, SITES)[0] for _ in range(20)]
    assert set(firsts) == set(SITES)


def test_reloc_puts_friends_together_and_strangers_at_the_nearest_site() -> None:
    world = World(west=0.0, east=100.0)
    world.topic("chat", "west", "east")
    for n in range(6):
        world.client(f"friend{n}", 100.0, "east", "chat", "chat")
    world.client("ann", 45.0, "west", "chat", "chat")
    world.client("idle", 0.0, "west")
    plan = reloc_homes(world.model(), seed=1)
    assert plan["ann"] == "east"  # hardly farther than west, and all her friends are there
    assert "idle" not in plan
    with_plan = policy("reloc")
    with_plan.plan = plan
    assert with_plan.homes(ClientRecord("ann", coordinate=at(45.0)), SITES, SITES)[0] == "east"
    assert with_plan.homes(ClientRecord("ann", coordinate=at(45.0), tried=["east"]), SITES, SITES)[0] == "middle"
    assert with_plan.homes(ClientRecord("stranger", coordinate=at(45.0)), SITES, SITES)[0] == "middle"
    assert with_plan.homes(ClientRecord("ann"), ["west", "middle"], SITES)[0] == "middle"  # east is lost


def test_without_clients_or_coordinates_reloc_has_no_plan() -> None:
    assert reloc_homes(World(west=0.0).model(), seed=1) == {}


async def test_reloc_plans_again_once_the_sites_of_a_new_leader_have_reported() -> None:
    world = World(west=0.0)
    world.topic("chat", "west")
    world.client("ann", 0.0, "west", "chat", "chat")
    model = world.model()
    silent = replace(model, sites=replace(model.sites, placed=np.array([False])))
    homes = policy("reloc")
    await homes.update_plan(silent, version=1, now=0.0)
    assert homes.plan == {}
    await homes.update_plan(model, version=1, now=1.0)
    assert homes.plan == {}, "not before the cool-down is over"
    await homes.update_plan(model, version=1, now=SETTINGS.cool_down)
    assert homes.plan == {"ann": "west"}
