"""Each goal on a small world: what it proposes, what it refuses, and the sentence that says why."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.coordinator.worlds import SETTINGS, World

from nearcast.coordinator.detectors import detect
from nearcast.coordinator.goals import ClientProposal, ReplicaProposal, TopicProposal, make_goals
from nearcast.coordinator.goals.latency import is_worth_a_move
from nearcast.coordinator.model.problems import balance_problem, site_loads
from nearcast.coordinator.plan import Plan, make_plan
from nearcast.domain.worker_id import WorkerId
from nearcast.placement.balance import ldm, sdm
from nearcast.placement.colocation.training import Training, train
from nearcast.placement.colocation.worker_simulation import SimulatedWorker, simulate
from nearcast.protocol.reports import BrokerFigures
from nearcast.site.agent.measurement import network_share


def plan_of(world: World, moved_at: dict[str, float] | None = None, **changes: object) -> Plan:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    world.settings = settings
    return make_plan(world.model(), settings, moved_at or {}, 1000.0)


def kinds(world: World, **changes: object) -> set[str]:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    return {anomaly.kind for anomaly in detect(world.model(), settings, frozenset(world.where))}


def sentences(world: World) -> list[str]:
    return [anomaly.sentence for anomaly in detect(world.model(), SETTINGS, frozenset(world.where))]


def moves(plan: Plan) -> list[str]:
    return [sentence["move"] for sentence in plan.to_dict([])["moves"]]


def swarm(home: str = "west") -> World:
    """A topic managed in the west whose clients are all in the east."""
    world = World(west=0.0, middle=40.0, east=100.0)
    world.topic("gps", "west", bound=40.0)
    world.client("leader", 98.0, home, publishes="gps")
    for n in range(3):
        world.client(f"drone{n}", 100.0 + n, home, subscribes="gps")
    return world


def test_a_late_topic_moves_where_its_bound_holds_and_its_clients_follow() -> None:
    world = swarm()
    assert kinds(world) == {"latency bound violated"}
    plan = plan_of(world)
    assert moves(plan) == [
        "topic gps: west/worker-0 -> east/worker-0",
        "client leader: west -> east",
        "client drone0: west -> east",
        "client drone1: west -> east",
        "client drone2: west -> east",
    ]
    first = plan.to_dict([])["moves"][0]
    assert f"{first['subject']} is to {first['change']}, because {first['reason']}" == (
        "topic gps is to move from west to east, because its messages take up to 102 ms and should take 40 ms; "
        "run at east they are expected to take at most 4 ms"
    )
    assert plan.before["late_topics"] == 1
    assert plan.after["late_topics"] == 0


def test_nothing_wrong_nothing_moves() -> None:
    world = swarm("east")
    world.topic("gps", "east", bound=40.0)
    assert kinds(world) == set()
    assert plan_of(world).accepted == ()


def test_a_move_that_does_not_keep_the_bound_waits_until_all_clients_have_told() -> None:
    """Half of the swarm has told that it moved: moving now would make the other half later."""
    world = World(west=0.0, middle=20.0)
    world.topic("gps", "west", bound=10.0)
    world.client("leader", 134.0, "west", publishes="gps")
    world.client("drone", 0.0, "west", subscribes="gps")
    model = world.model()
    best = float(model.topics.expected[0].min())
    assert best > 10.0
    settings = msgspec.structs.replace(SETTINGS, gain=0.0)
    just_late = replace(model, topics=replace(model.topics, just_late=np.array([True])))
    expected = 0.8 * float(model.topics.estimate[0])
    assert is_worth_a_move(model, 0, expected, settings)
    assert not is_worth_a_move(just_late, 0, expected, settings)
    assert is_worth_a_move(just_late, 0, 0.65 * float(model.topics.estimate[0]), settings)


def test_a_late_topic_does_not_go_where_it_would_overload_the_site() -> None:
    world = swarm()
    world.broker["east"] = BrokerFigures(messages_out=1000.0, cpu=0.84)
    world.topic("big", "east")
    world.client("sender", 100.0, "east", publishes="big")
    assert [move for move in moves(plan_of(world)) if move.startswith("topic")] == []
    world.broker["east"] = BrokerFigures(messages_out=1000.0, cpu=0.1)
    assert "topic gps: west/worker-0 -> east/worker-0" in moves(plan_of(world))


def test_an_overloaded_site_sheds_its_largest_topics() -> None:
    world = World(west=0.0, east=30.0)
    for n, publishers in enumerate((5, 1, 1)):
        world.topic(f"t{n}", "west")
        for m in range(publishers):
            world.client(f"c{n}{m}", 0.0, "west", publishes=f"t{n}")
    world.broker["west"] = BrokerFigures(messages_out=70.0, cpu=0.95)
    assert kinds(world) == {"site overloaded"}
    plan = plan_of(world)
    assert moves(plan) == ["topic t0: west/worker-0 -> east/worker-0"]
    assert (
        plan.to_dict([])["moves"][0]["reason"]
        == "west is overloaded, and this is one of its largest topics, 50 messages/s"
    )


def test_topics_of_a_lost_site_run_elsewhere_and_shared_ones_go_on() -> None:
    world = World(west=0.0, middle=10.0, east=100.0)
    world.topic("gps", "west")
    world.topic("air", "west", "east")
    world.client("car", 2.0, "west", publishes="gps", subscribes="gps")
    world.lost = {"west"}
    assert kinds(world) == {"site lost"}
    plan = plan_of(world)
    assert moves(plan) == [
        "topic air: west/worker-0, east/worker-0 -> east/worker-0",
        "topic gps: west/worker-0 -> middle/worker-0",
        "client car: west -> middle",
    ]


def test_a_worker_over_its_bound_is_split_and_idle_ones_are_put_together() -> None:
    world = World(west=0.0)
    for n in range(3):
        world.topic(f"t{n}", "west", bound=100.0)
    world.worker("west", "worker-0", ("t0", 40, 10, 300), ("t1", 20, 10, 300), ("t2", 30, 10, 300))
    assert kinds(world) == {"worker over its bound", "latency bound violated"}
    plan = plan_of(world)  # the time is lost in the worker: no topic goes to another site
    assert moves(plan) == ["topic t2: west/worker-0 -> west/worker-1"]
    assert "worker-0 is too slow or too busy with 3 topics (p90 up to 300 ms" in plan.to_dict([])["moves"][0]["reason"]

    world.workers.clear()
    world.topic("t2", "west", bound=100.0, worker="worker-1")
    world.worker("west", "worker-0", ("t0", 2, 10, 11), ("t1", 2, 10, 11))
    world.worker("west", "worker-1", ("t2", 2, 10, 11))
    assert moves(plan_of(world)) == ["topic t2: west/worker-1 -> west/worker-0"]


def test_skewed_homes_are_balanced_and_cov_falls() -> None:
    world = World(west=0.0, east=5.0)
    world.topic("news")
    world.client("editor", 0.0, "west", publishes="news")
    for n in range(40):
        world.client(f"reader{n}", 2.0, "west" if n < 36 else "east", subscribes="news")
    changes = {"cov": 0.1, "mean_load": 50.0}
    assert kinds(world, **changes) == {"unbalanced homes"}
    plan = plan_of(world, **changes)
    assert plan.after["cov"] <= 0.1 < plan.before["cov"]
    assert all(isinstance(one.proposal, ClientProposal) for one in plan.accepted)
    assert len(plan.accepted) <= 18


def test_balance_sends_clients_where_their_topics_are_when_that_carries_less() -> None:
    world = World(west=0.0, middle=2.0, east=5.0)
    for name in ("sports", "music"):
        world.topic(name)
        world.client(f"editor of {name}", 0.0, "west", publishes=name)
    for n in range(24):
        world.client(f"reader{n}", 2.0, "west", subscribes="sports" if n < 12 else "music")
    world.client("fan", 2.0, "middle", subscribes="sports")
    world.client("listener", 2.0, "east", subscribes="music")
    changes = {"cov": 0.2, "mean_load": 20.0}
    plan = plan_of(world, **changes)
    assert plan.after["cov"] <= 0.2 < plan.before["cov"]
    assert "where others already follow the same topics" in plan.to_dict([])["moves"][0]["reason"]
    _, _, problem, current = balance_problem(world.model())
    by_load, by_likeness = (scheme(problem, current, alpha=0.2, beta=20.0) for scheme in (ldm, sdm))
    assert by_likeness.loads.sum() < by_load.loads.sum()
    assert len(plan.accepted) == len(by_likeness.moved)


def test_channel_results_are_a_load_and_shared_ones_are_carried_once() -> None:
    world = World(west=0.0, east=5.0)
    world.topic("news")
    for n in range(20):
        world.client(f"reader{n}", 2.0, "west", channels=f"alerts.k{n % 2}")
    model = world.model()
    assert model.clients.channels == ("alerts.k0", "alerts.k1")
    assert model.channel_rate.tolist() == [10.0, 10.0]
    assert site_loads(model).tolist() == [0.0, 220.0]  # two come in once, each of 20 clients is sent its own
    plan = plan_of(world, cov=0.1, mean_load=20.0)
    assert plan.after["cov"] <= 0.1 < plan.before["cov"]


def test_a_site_whose_link_is_nearly_full_sheds_topics() -> None:
    world = World(west=0.0, east=5.0)
    world.topic("big", "west")
    world.client("sender", 0.0, "west", publishes="big", subscribes="big")
    world.broker["west"] = BrokerFigures(messages_out=20.0, network=network_share(1e6, 11.5e6, 100))
    assert kinds(world) == {"site overloaded"}
    assert "uses 92% of its network" in sentences(world)[0]
    assert moves(plan_of(world))[0] == "topic big: west/worker-0 -> east/worker-0"
    assert network_share(1e9, 1e9, None) == 0.0  # nobody said what the link carries


def test_balance_may_not_make_a_topic_late() -> None:
    world = World(west=0.0, east=300.0)
    world.topic("news", "west", bound=20.0)
    world.client("editor", 0.0, "west", publishes="news")
    for n in range(20):
        world.client(f"reader{n}", 1.0, "west", subscribes="news")
    plan = plan_of(world, cov=0.1, mean_load=50.0)
    assert plan.accepted == ()
    assert {one.by for one in plan.refused} == {"topic latency"}
    assert plan.refused[0].reason == "topic news would take up to 302 ms; its bound is 20 ms"


def test_balance_counts_the_way_from_the_new_home_to_the_topic_in_both_roles() -> None:
    """A drone that publishes and subscribes, 15 ms (one way) farther from the other site, which is 15 ms away from the
    topic: at home there a message would take 60 ms more, not 15."""
    world = World(west=0.0, east=30.0)
    world.topic("swarm", "west", bound=60.0)
    for n in range(20):
        world.client(f"drone{n}", 0.0, "west", publishes="swarm", subscribes="swarm")
    plan = plan_of(world, cov=0.1, mean_load=50.0)
    assert plan.accepted == ()
    assert {one.by for one in plan.refused} == {"topic latency"}


def test_balance_adds_up_the_ways_of_publishers_and_subscribers_that_it_moves() -> None:
    """Each move alone is within the bound, one of a publisher and one of a subscriber are not."""
    world = World(west=0.0, east=30.0)
    world.topic("news", "west", bound=50.0)
    for n in range(10):
        world.client(f"editor{n}", 0.0, "west", publishes="news")
        world.client(f"reader{n}", 0.0, "west", subscribes="news")
    plan = plan_of(world, cov=0.1, mean_load=20.0)
    assert len({move.removeprefix("client ")[:6] for move in moves(plan)}) == 1


def test_soft_goals_leave_alone_what_has_just_moved() -> None:
    world = World(west=0.0, east=5.0)
    world.topic("news")
    world.client("editor", 0.0, "west", publishes="news")
    for n in range(40):
        world.client(f"reader{n}", 2.0, "west", subscribes="news")
    moved = {f"client reader{n}": 990.0 for n in range(40)}
    plan = plan_of(world, moved, cov=0.1, mean_load=50.0)
    assert plan.accepted == ()
    assert plan.refused[0].reason == "it moved 10 s ago, and the cool-down is 60 s"


def test_replicas_leave_a_lost_store_and_follow_demand() -> None:
    world = World(west=0.0, middle=50.0, east=100.0)
    world.stores = {"west", "middle", "east"}
    world.topic("log", replicas=("west",))
    for n in range(5):
        world.client(f"reader{n}", 100.0, "east", subscribes="log")
    plan = plan_of(world)
    (one,) = plan.accepted
    assert isinstance(one.proposal, ReplicaProposal)
    assert one.proposal.replicas == ("east",)
    world.topic("log", replicas=("east",))
    assert plan_of(world).accepted == ()
    world.stores_down = {"east"}
    assert "store lost" in kinds(world)
    (one,) = plan_of(world).accepted
    assert isinstance(one.proposal, ReplicaProposal)
    assert "east" not in one.proposal.replicas
    assert one.proposal.hard


def test_replicas_are_planned_although_a_site_has_not_told_where_it_is() -> None:
    """As after a change of leader, for a site that died before it: each pass failed, and nothing was planned at all."""
    world = World(west=0.0, middle=50.0, east=100.0)
    world.stores = {"west", "middle", "east"}
    world.topic("log", replicas=("west",))
    for n in range(5):
        world.client(f"reader{n}", 100.0, "east", subscribes="log")
    model = world.model()
    model.sites.round_trip[1, [0, 2]] = model.sites.round_trip[[0, 2], 1] = np.inf
    (goal,) = [goal for goal in make_goals() if goal.name == "replicas near demand"]
    (one,) = goal.propose(model, SETTINGS)
    assert isinstance(one, ReplicaProposal)
    assert one.replicas == ("east",)


def test_a_lost_store_without_a_replacement_stays_a_replica() -> None:
    """The record says how many replicas are wished: a plan that left one out would never give it back."""
    world = World(west=0.0, middle=50.0, east=100.0)
    world.stores = {"west", "middle", "east"}
    world.topic("log", replicas=("west", "middle", "east"))
    world.client("reader", 0.0, "west", subscribes="log")
    for lost in ({"east"}, {"middle"}):
        world.stores_down = lost
        assert plan_of(world).accepted == ()
        world.stores_down, world.lost = set(), lost
        assert not [one for one in plan_of(world).accepted if isinstance(one.proposal, ReplicaProposal)]
        world.lost = set()


@pytest.mark.parametrize("down", [{"a"}, {"a", "b"}, {"a", "c"}, {"b", "c"}])
def test_replicas_are_replaced_as_far_as_stores_answer_and_never_fewer(down: set[str]) -> None:
    world = World(a=0.0, b=10.0, c=20.0, d=30.0)
    world.stores, world.stores_down = {"a", "b", "c", "d"}, down
    world.topic("log", replicas=("a", "b", "c"))
    (one,) = plan_of(world).accepted
    assert isinstance(one.proposal, ReplicaProposal)
    assert len(set(one.proposal.replicas)) == 3
    assert {"a", "b", "c", "d"} - down <= set(one.proposal.replicas)


def test_clients_of_late_shared_topics_get_better_homes() -> None:
    world = World(west=0.0, east=100.0)
    world.topic("game", "west", "east", bound=30.0)
    for n in range(4):
        world.client(f"player{n}", 100.0, "west", publishes="game", subscribes="game")
    plan = plan_of(world)
    assert {move.rpartition(" ")[2] for move in moves(plan)} == {"east"}
    assert len(plan.accepted) == 4


def test_a_topic_at_a_site_without_its_processor_is_noticed_and_none_moves_there() -> None:
    world = World(west=0.0, east=100.0)
    world.topic("gps", "west", bound=30.0)
    world.topic("air.*", "west")
    for n in range(4):
        world.client(f"car{n}", 100.0, "east", publishes="gps", subscribes="gps")
    assert any("-> east/worker-0" in move for move in moves(plan_of(world)))  # nobody has told of processors
    world.processors = {"west": ["gps"], "east": ["air.>"]}
    (found,) = (anomaly for anomaly in detect(world.model(), SETTINGS, frozenset({"west", "east"}))
                if anomaly.kind == "no processor")  # fmt: skip
    assert found.sentence == "topic air.* is managed by west, which has no processor for it"
    plan = plan_of(world)
    assert not [one for one in plan.accepted if isinstance(one.proposal, TopicProposal)]
    assert "site east has no processor for topic gps" in {one.reason for one in plan.refused}


def test_a_site_that_joins_is_noticed() -> None:
    world = World(west=0.0, east=1.0)
    found = detect(world.model(), SETTINGS, frozenset({"west"}))
    assert [(anomaly.kind, anomaly.about) for anomaly in found] == [("site joined", "east")]


def test_proposals_name_a_worker_the_topic_has_already() -> None:
    world = swarm()
    world.topic("gps", "west", bound=40.0, worker="worker-7")
    (first, *_) = plan_of(world).accepted
    assert isinstance(first.proposal, TopicProposal)
    assert first.proposal.members == (WorkerId("east", "worker-0"),)


def test_a_trained_model_decides_which_topics_may_share_a_worker() -> None:
    samples = simulate(60, 2, SimulatedWorker(seconds=20.0), 1)
    model, _ = train(samples, Training(seed=1))
    world = World(west=0.0)
    for n in range(3):
        world.topic(f"t{n}", "west", bound=120.0)
    world.worker("west", "worker-0", ("t0", 12, 25, 300), ("t1", 12, 25, 300), ("t2", 12, 25, 300))
    plan = make_plan(world.model(), SETTINGS, {}, 0.0, make_goals(model))
    assert moves(plan)
    assert all(move.startswith("topic t") and "west/worker-0 -> west/worker-" in move for move in moves(plan))


def test_replicas_that_are_being_copied_are_left_alone_and_the_topics_members_are_not() -> None:
    world = World(west=0.0, east=100.0)
    world.stores = {"west", "east"}
    world.topic("log", "west", replicas=("west",))
    for n in range(5):
        world.client(f"reader{n}", 100.0, "east", subscribes="log")
    plan = make_plan(world.model(), SETTINGS, {}, 0.0, copying={"log"})
    assert plan.accepted == ()
    assert [(one.goal, one.reason) for one in plan.refused] == [
        ("replicas near demand", "its replicas are still being moved")
    ]
    world.lost = {"west"}
    plan = make_plan(world.model(), SETTINGS, {}, 0.0, copying={"log"})
    assert [type(one.proposal) for one in plan.accepted] == [TopicProposal]
