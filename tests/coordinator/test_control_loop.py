"""Passes of the control loop without servers: what is executed, what is forgotten, and what ends the loop."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from tests.coordinator.worlds import SETTINGS, World

from nearcast.coordinator.control_loop import ControlLoop
from nearcast.coordinator.executor.steps import Finish
from nearcast.coordinator.goals import GOALS
from nearcast.coordinator.homes import HomePolicy
from nearcast.coordinator.monitor import Monitor
from nearcast.coordinator.moves import ClientMove, TopicMove
from nearcast.coordinator.registry import Registry
from nearcast.coordinator.term import DeposedError, Term
from nearcast.errors import NearcastError
from nearcast.nats.lease import LeaseMachine


class MemoryState:
    """The coordinators' state, without a store."""

    async def erase(self, key: str) -> None:
        pass


class RecordingExecutor:
    """Executes nothing, and records what it was given."""

    def __init__(self) -> None:
        self.moves: list[TopicMove | ClientMove] = []
        self.copies: dict[str, object] = {}
        self.failure: BaseException | None = None

    async def run(self, moves: list[TopicMove | ClientMove]) -> list[Finish]:
        self.moves += moves
        return [Finish("done") for _ in moves]


def loop_over(world: World, **changes: object) -> tuple[ControlLoop, RecordingExecutor, Registry, Monitor]:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    registry, executor = Registry(MemoryState()), RecordingExecutor()  # type: ignore[arg-type]
    registry.sites, registry.topics, registry.clients = world.sites(), world.topics, world.clients
    monitor, term = world.monitor(asyncio.get_running_loop().time()), Term(LeaseMachine("coordinator-1", 6.0))
    return (
        ControlLoop(registry, monitor, HomePolicy(settings), executor, term, settings, GOALS),  # type: ignore[arg-type]
        executor,
        registry,
        monitor,
    )


def late_topic() -> World:
    world = World(west=0.0, east=100.0)
    world.topic("gps", "west", bound=40.0)
    world.client("car", 100.0, "east", "gps", "gps")
    return world


async def test_a_plan_is_executed_only_when_that_is_automatic() -> None:
    for automatic in (False, True):
        loop, executor, _, _ = loop_over(late_topic(), automatic=automatic)
        await loop.run_pass()
        assert loop.last_pass["moves"] == 1
        assert [move.before for move in executor.moves] == ([(("west", "worker-0"),)] if automatic else [])
        assert loop.known_sites == {"west", "east"}


async def test_an_anomaly_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """That a site is lost was a line of each pass, for ever for one that was removed."""
    loop, _, _, _ = loop_over(late_topic(), automatic=False)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            await loop.run_pass()
    assert len([record for record in caplog.records if record.getMessage().startswith("site joined: site east")]) == 1
    late = [record.getMessage() for record in caplog.records if "gps" in record.getMessage()]
    assert len(late) == 1, late
    assert loop.anomalies


async def test_a_plan_is_shown_without_being_executed_and_applied_with_its_outcomes() -> None:
    loop, executor, _, _ = loop_over(late_topic())
    assert [move["subject"] for move in loop.show_plan()["moves"]] == ["topic gps"]
    assert not executor.moves
    assert [move["outcome"] for move in (await loop.apply_plan())["moves"]] == ["done"]
    assert len(executor.moves) == 1


async def test_a_plan_that_is_asked_for_before_a_site_registered_is_refused() -> None:
    """Topics of an earlier time are there: the answer was an internal error."""
    loop, _, registry, _ = loop_over(late_topic())
    registry.sites = {}
    with pytest.raises(NearcastError, match="no site has registered yet"):
        await loop.apply_plan()
    await loop.run_pass()
    assert loop.passes == 1


async def test_exactly_the_shown_plan_is_executed_by_its_id_and_refused_moves_are_not() -> None:
    loop, executor, _, _ = loop_over(late_topic())
    refused = await loop.execute_proposal(loop.show_plan()["id"], [])
    assert [move["outcome"] for move in refused["moves"]] == ["not approved"]
    assert not executor.moves
    done = await loop.execute_proposal(loop.show_plan()["id"], [0])
    assert [move["outcome"] for move in done["moves"]] == ["done"]
    assert len(executor.moves) == 1


async def test_clients_that_departed_are_forgotten_after_a_while_and_a_failed_pass_does_not_end_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = late_topic()
    loop, executor, registry, monitor = loop_over(world, automatic=False, period=0.01, client_lost_after=5.0)
    now = asyncio.get_running_loop().time()
    world.client("old", 0.0, "west")
    monitor.departed.update(old=now - 10.0, car=now - 1.0)
    executor.failure = ValueError("a copy failed")
    running = asyncio.create_task(loop.run())
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            if loop.last_pass:
                break
            await asyncio.sleep(0.01)
    assert set(registry.clients) == {"car"}
    assert "a pass of the control loop failed" in caplog.text
    executor.failure = DeposedError("another leads")
    with pytest.raises(DeposedError, match="another leads"):
        await asyncio.wait_for(running, 10)
