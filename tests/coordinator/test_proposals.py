"""A plan that was shown is executed once, in time, and only the approved moves of it."""

from __future__ import annotations

import pytest
from tests.coordinator.worlds import World

from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.coordinator.plan import Plan, make_plan
from nearcast.coordinator.proposals import Proposals
from nearcast.errors import InputError


@pytest.fixture
def plan() -> Plan:
    world = World(west=0.0, east=5.0)
    for name in ("one", "two"):
        world.topic(name, "west")
    world.lost.add("west")
    return make_plan(world.model(), CoordinatorSettings(), {}, 1000.0)


def test_once_and_in_time(plan: Plan) -> None:
    now = [0.0]
    proposals = Proposals(300.0, clock=lambda: now[0])
    first, second = proposals.add(plan, []), proposals.add(plan, [])
    assert proposals.take(first.id)[1] is plan
    with pytest.raises(InputError, match=f"there is no plan '{first.id}'"):
        proposals.take(first.id)
    now[0] = 301.0
    with pytest.raises(InputError, match="has expired"):
        proposals.take(second.id)


def test_only_what_was_approved(plan: Plan) -> None:
    proposal = Proposals(300.0).add(plan, [])
    assert len(plan.accepted) == 2
    assert proposal.approved(None) is plan
    assert proposal.approved([1]).accepted == plan.accepted[1:]
    assert proposal.approved([]).accepted == ()
    with pytest.raises(InputError, match="has 2 moves, numbered from 0; it has no move 7"):
        proposal.approved([0, 7])
