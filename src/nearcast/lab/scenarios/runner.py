"""One scenario under one policy: sites, coordinator and clients as processes of their own at emulated nodes."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec
from nearcast.lab.scenarios.clients import ClientJob, ClientResults, NodeJob
from nearcast.lab.scenarios.conductor import Conductor
from nearcast.lab.scenarios.policies import COORDINATOR_SETTINGS, Oracle, starting_places
from nearcast.lab.scenarios.processes import NEARCAST, node_processes
from nearcast.lab.scenarios.scenario import CLOUD, FOREVER
from nearcast.lab.scenarios.startup import toml_text, wait_for_coordinator, wait_for_gateways
from nearcast.lab.wan import call_at, wide_area
from nearcast.nats.connection import open_connection
from nearcast.nats.tasks import TaskSet

if TYPE_CHECKING:
    from nearcast.lab.scenarios.observed_moves import ObservedMove
    from nearcast.lab.scenarios.policies import Policy, StartingPlaces
    from nearcast.lab.scenarios.processes import NodeProcess, NodeProcesses
    from nearcast.lab.scenarios.scenario import Scenario, ScheduledFault
    from nearcast.lab.wan import Area

__all__ = ["DRAIN", "WARM_UP", "ScenarioRun", "run_scenario"]

WARM_UP = 15.0  # s; three report periods: what happens in them is played, but not judged
DRAIN = 5.0  # s; after the last publication, for messages that are late
_CLIENTS = "nearcast.lab.scenarios.clients"
_PORT = 4222
_START_LIMIT = 60.0


@dataclass(frozen=True)
class ScenarioRun:
    """What came of a run. start: the Unix time at which the measured time began."""

    scenario: Scenario
    policy: Policy
    start: float
    results: list[ClientResults]
    moves: list[ObservedMove]


async def run_scenario(
    scenario: Scenario,
    policy: Policy,
    logs: Path,
    tick: Callable[[float], None] = lambda share: None,
    *,
    warm_up: float = WARM_UP,
    faults: Sequence[ScheduledFault] = (),
) -> ScenarioRun:
    """Run it; `tick` is told the share that is done. Processes leave their logs, and nothing else.

    For a fault that kills the coordinator there is a second one, in the cloud as well.
    """
    places, settings = starting_places(policy, scenario), COORDINATOR_SETTINGS.get(policy)
    oracle = Oracle(scenario, places) if policy == "oracle" else None
    with tempfile.TemporaryDirectory(prefix="nearcast-") as temporary:
        folder = Path(temporary)
        async with (
            wide_area(scenario.topology(), seed=scenario.seed) as area,
            node_processes(area.command, logs) as processes,
        ):
            urls = {site: f"nats://{area.address(site)}:{_PORT}" for site in scenario.sites}
            await _start_sites(scenario, places, area, processes, folder)
            standbys = [f"standby{n}" for n, fault in enumerate(faults) if fault.kind == "kill coordinator"]
            coordinators = [
                await _start_coordinator(name, scenario, settings or {}, urls[CLOUD], area, processes, folder)
                for name in (["coordinator", *standbys] if settings is not None else [])
            ]
            jobs = node_jobs(scenario, places, urls, folder, warm_up)
            starting = [processes.job(node, node, _CLIENTS, job, _START_LIMIT) for node, job in jobs.items()]
            clients = await asyncio.gather(*starting)
            start = time.time() + warm_up
            await asyncio.gather(*(process.tell(str(start).encode()) for process in clients))
            conductor = Conductor(scenario, area, None if settings is None else urls[CLOUD], oracle)
            tasks = TaskSet()
            for fault in faults:
                tasks.spawn(_disturb(fault, start, area, coordinators))
            try:
                moves = await call_at(area, CLOUD, partial(conductor.run, start, warm_up, tick))
            finally:
                await tasks.cancel()
            await asyncio.gather(*(process.finished(DRAIN + _START_LIMIT) for process in clients))
            files = [Path(job.results) for job in jobs.values()]
            results = [msgspec.msgpack.decode(file.read_bytes(), type=ClientResults) for file in files]
            return ScenarioRun(scenario, policy, start, results, moves)


async def _start_sites(
    scenario: Scenario, places: StartingPlaces, area: Area, processes: NodeProcesses, folder: Path
) -> None:
    """Start every site, and wait until each can send to each other."""
    (folder / "store").mkdir()
    configuration = folder / "nearcast.toml"
    configuration.write_text(deployment_text(scenario, places, area.address))
    sites = [
        await processes.python(site, site, *NEARCAST, "site", "run", "--config", str(configuration), "--name", site)
        for site in scenario.sites
    ]
    await asyncio.gather(*(site.said("Ready", _START_LIMIT) for site in sites))
    await wait_for_gateways(configuration, partial(call_at, area))


def deployment_text(scenario: Scenario, places: StartingPlaces, address: Callable[[str], str]) -> str:
    """`nearcast.toml`: default settings, a store at the cloud only."""
    sites = [SiteSpec(site, host=address(site), port=_PORT) for site in scenario.edges]
    sites.append(SiteSpec(CLOUD, "cloud", host=address(CLOUD), port=_PORT, store=StoreSpec(Path("store"))))
    topics = [TopicSpec(topic, (site,), bound_ms=scenario.bound_ms) for topic, site in places.topics.items()]
    # Insecure: nobody else is in these namespaces.
    return toml_text(processors=["nearcast.lab.scenarios.echo"], insecure=True, site=sites, topic=topics)


async def _disturb(fault: ScheduledFault, start: float, area: Area, coordinators: list[NodeProcess]) -> None:
    await asyncio.sleep(start + fault.at - time.time())
    if fault.kind == "kill coordinator":
        coordinators.pop(0).kill()
        return
    area.cut(CLOUD, fault.site)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        area.heal(CLOUD, fault.site)


async def _start_coordinator(
    name: str,
    scenario: Scenario,
    settings: dict[str, Any],
    url: str,
    area: Area,
    processes: NodeProcesses,
    folder: Path,
) -> NodeProcess:
    """Start it in the cloud, and wait until all sites have registered and it says that it is ready."""
    file = folder / "coordinator.toml"
    file.write_text(toml_text(**settings))
    command = (*NEARCAST, "coordinator", "run", "--url", url, "--settings", str(file))
    process = await processes.python(CLOUD, name, *command)
    await process.said("Ready", _START_LIMIT)

    async def ready() -> None:
        connection = await open_connection([url], name="runner", timeout=10)
        try:
            await wait_for_coordinator(connection, len(scenario.sites), _START_LIMIT)
        finally:
            await connection.close()

    await call_at(area, CLOUD, ready)
    return process


def node_jobs(
    scenario: Scenario, places: StartingPlaces, urls: dict[str, str], folder: Path, warm_up: float
) -> dict[str, NodeJob]:
    """What the clients of each node do. Clients with a coordinator know the address of the cloud only."""
    rng = np.random.default_rng(scenario.seed)
    clients: dict[str, list[ClientJob]] = {node: [] for node in scenario.nodes}
    for number, each in enumerate(scenario.participants):
        home = CLOUD if places.homes is None else places.homes[each.name]
        spans = [(span.topic, _finite(span.start), _finite(span.end)) for span in each.subscribes]
        coordinated, phase = places.homes is None, float(rng.random())
        clients[each.node].append(
            ClientJob(number, each.name, [urls[home]], coordinated, each.mobile, each.topic, phase, spans)
        )
    return {
        node: NodeJob(
            here, scenario.rate, scenario.size, warm_up, scenario.seconds, DRAIN, str(folder / f"{node}.results")
        )
        for node, here in clients.items()
        if here
    }


def _finite(at: float) -> float | None:
    return None if abs(at) == FOREVER else at
