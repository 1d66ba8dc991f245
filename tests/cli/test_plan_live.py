"""What `nearcast plan show` prints: a sentence for every move, made or refused."""

from __future__ import annotations

import pytest
from tests.coordinator.worlds import World

from nearcast.cli.plan import live
from nearcast.cli.plan.live import print_plan
from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.coordinator.detectors import detect
from nearcast.coordinator.plan import make_plan
from nearcast.protocol.reports import BrokerFigures


def printed(world: World, capsys: pytest.CaptureFixture[str], **changes: float) -> list[str]:
    settings = CoordinatorSettings(**changes)  # type: ignore[arg-type]
    world.settings = settings
    model = world.model()
    anomalies = detect(model, settings, frozenset(world.where))
    print_plan(make_plan(model, settings, {}, 1000.0).to_dict(anomalies), False)
    return capsys.readouterr().out.splitlines()


def test_every_kind_of_move_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(west=0.0, east=5.0, far=200.0)
    world.stores = {"west", "east", "far"}
    world.topic("gone", "west")
    world.topic("both", "west", "east")
    world.topic("log", replicas=("west",))
    world.client("car", 0.0, "west", subscribes="log")
    world.lost.add("west")
    lines = printed(world, capsys)
    assert lines[:5] == [
        "! Site west has not reported for 20 s.",
        "- Topic both is to run at east instead of west and east, because west is lost, and the other sites that run "
        "it continue without it. (site capacity)",
        "- Topic gone is to move from west to east, because west is lost, and east is the best live site with room for "
        "it. (site capacity)",
        "- Client car is to move from west to east, because its home west is lost, and east is the nearest live site. "
        "(site capacity)",
        "- Topic log is to be kept at east instead of west, because a store that kept it does not answer, "
        "or cannot write. (replicas near demand)",
    ]


def test_moves_that_are_alike_are_named_together_and_refusals_say_not(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(west=0.0, east=300.0)
    world.topic("news", "west", bound=20.0)
    world.client("editor", 0.0, "west", publishes="news")
    for n in range(20):
        world.client(f"reader{n}", 1.0, "west", subscribes="news")
    lines = printed(world, capsys, cov=0.1, mean_load=50.0)
    assert lines[1] == "Nothing to move."
    assert lines[2].startswith(
        "- Client reader0 is not to move from west to east, because topic news would take up to "
    )
    assert lines[3].startswith("    Likewise ")
    assert "reader1, reader2" in lines[3]


def test_only_figures_that_say_something_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(west=0.0, east=5.0)
    world.topic("big", "west")
    world.client("sender", 0.0, "west", publishes="big", subscribes="big")
    world.broker["west"] = BrokerFigures(messages_out=20.0, cpu=0.95)
    lines = printed(world, capsys)
    assert any(line.split() == ["overloaded", "sites", "1", "0"] for line in lines)
    assert not any(line.startswith("topics above their bound") for line in lines)
    print_plan({"found": [], "moves": [], "refused": [], "left": [], "before": {}, "after": {}}, False)
    assert capsys.readouterr().out == "Nothing is wrong.\nNothing to move.\n"


def test_a_dry_run_asks_for_the_plan_and_does_not_apply_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(url: str, noun: str, verb: str, timeout: float = 60.0) -> dict[str, object]:
        asked.append(verb)
        return {"found": [], "moves": [], "refused": [], "left": [], "before": {}, "after": {}}

    monkeypatch.setattr(live, "call_leader", answer)
    live.apply(dry_run=True)
    live.apply()
    live.show()
    assert asked == ["show", "apply", "show"]
