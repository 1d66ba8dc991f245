"""One run of the demonstration, from the first key to the account."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.cluster.spark_session import JavaError, require_java
from nearcast.lab.demo.city import CLOUD, ZONES, City
from nearcast.lab.demo.deployment import deployed
from nearcast.lab.demo.nodes import EmulatedNodes, LoopbackNodes, Nodes
from nearcast.lab.demo.story import told_story
from nearcast.lab.wan import missing_right, wide_area

if TYPE_CHECKING:
    from nearcast.lab.demo.account import CityAccount
    from nearcast.lab.demo.city import Act
    from nearcast.lab.demo.deployment import Say
    from nearcast.lab.scenarios.observed_moves import ObservedMove

__all__ = ["DemoOptions", "DemoResult", "run_demo"]

_MEASURE_LIMIT = 60.0


@dataclass(frozen=True)
class DemoOptions:
    """distance: with an emulated wide area, if this machine allows it. keep: run on after the story until cancelled."""

    city: City
    acts: tuple[Act, ...]
    logs: Path
    cluster: bool = True
    distance: bool = True
    keep: bool = False


@dataclass(frozen=True)
class DemoResult:
    """The account, the moves of the story, whether sites were apart from each other, and what could not be shown."""

    account: CityAccount
    moves: tuple[ObservedMove, ...]
    emulated: bool
    problem: str = ""


async def run_demo(options: DemoOptions, say: Say, done: Callable[[DemoResult], None]) -> None:
    """Run it; `say` is told what happens, `done` what came of it. Only the logs stay."""
    cluster = options.cluster
    if cluster:
        try:
            require_java()
        except JavaError as error:
            say(f"The data cluster is not shown: {error}. All the rest runs.")
            cluster = False
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearcast-demo-")))
        nodes = await _nodes(options, stack, say)
        deployment = await stack.enter_async_context(
            deployed(options.city, nodes, folder, options.logs, say, cluster=cluster)
        )
        story = await stack.enter_async_context(told_story(deployment, say))
        await deployment.wait_until_measured(_MEASURE_LIMIT)
        account = await story.play(options.acts)
        done(DemoResult(account, tuple(story.moves), nodes.emulated, story.problem))
        if options.keep:
            say(f"The city stays up: {deployment.console}  Stop with Ctrl-C.")
            await asyncio.Event().wait()
        say("Ending all processes …")


async def _nodes(options: DemoOptions, stack: contextlib.AsyncExitStack, say: Say) -> Nodes:
    reason = await asyncio.to_thread(missing_right) if options.distance else "it was not asked for"
    if reason is None:
        scenario = options.city.scenario()
        area = await stack.enter_async_context(wide_area(scenario.topology(), seed=scenario.seed))
        say("A wide area is emulated: 15 ms (one way) between sites, 40 ms to the cloud, 8 ms to the nearest site.")
        return EmulatedNodes(area)
    say(f"No wide area is emulated: {reason}. All sites are as near as this machine, so bounds are easy to keep.")
    return LoopbackNodes((*ZONES, CLOUD))
