"""One chaos run: everything is started, works, is harmed by one fault after the other, and is judged."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from nearcast.errors import NearcastError
from nearcast.lab.chaos import deployment as city
from nearcast.lab.chaos.checker.evidence import read_ledger
from nearcast.lab.chaos.checker.judge import check, owed
from nearcast.lab.chaos.clients import STOPPED, ClientsJob
from nearcast.lab.chaos.disk import small_disk
from nearcast.lab.chaos.faults import FaultInjector
from nearcast.lab.chaos.ledger import LedgerFile
from nearcast.lab.chaos.mqtt_devices import DevicesJob
from nearcast.lab.chaos.processor import LEDGER_VARIABLE, SITE_VARIABLE
from nearcast.lab.chaos.services import NodeService
from nearcast.lab.chaos.store_dump import dump_history, dump_replicas, dump_store
from nearcast.lab.scenarios.processes import BACKGROUND, NEARCAST, NodeProcess, NodeProcesses, node_processes
from nearcast.lab.scenarios.startup import keep_logs, toml_text, wait_for_gateways
from nearcast.lab.wan import Area, call_at, wide_area
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from nearcast.lab.chaos.checker.verdict import Verdict
    from nearcast.lab.chaos.schedule import ChaosPlan

__all__ = ["run_chaos"]

_READY_LIMIT = 120.0
_SPARK_LIMIT = 240.0
_STOP_LIMIT = 30.0
_UP_LIMIT = 60.0
_OVERHEAD = 600.0  # s; for starting, reading the stores and ending, on a busy machine
_DUMP = "stores.jsonl"


async def run_chaos(
    plan: ChaosPlan, ledger: Path, logs: Path, tick: Callable[[float], None] = lambda share: None
) -> Verdict:
    """Run it and judge it; `tick` is told the share that is done. Only the ledger and the logs stay."""
    limit = plan.seconds + plan.phases.drain + _OVERHEAD + (2 * _SPARK_LIMIT if plan.cluster else 0.0)
    limit += len(plan.faults) * _UP_LIMIT
    try:
        async with asyncio.timeout(limit):
            with tempfile.TemporaryDirectory(prefix="nearcast-chaos-") as folder:
                try:
                    return await _run(plan, Path(folder), ledger, logs, tick)
                finally:
                    keep_logs(Path(folder), logs)
    except TimeoutError:
        raise NearcastError(f"the run did not end within {limit:.0f} s; logs: {logs}") from None


async def _run(plan: ChaosPlan, folder: Path, ledger: Path, logs: Path, tick: Callable[[float], None]) -> Verdict:
    for site in city.STORES:
        (folder / "stores" / site).mkdir(parents=True)
    disk = folder / "stores" / city.SMALL_DISK
    with small_disk(disk):
        async with (
            wide_area(city.topology(), seed=plan.seed) as area,
            node_processes(area.command, logs, niceness=0) as processes,
        ):
            run = _ChaosRun(plan, area, processes, folder, ledger)
            async with run.deployed():
                return await run.play(FaultInjector(area, run.services, disk, run.false_clock, run.devices_off), tick)


class _ChaosRun:
    """The parts of one run."""

    def __init__(self, plan: ChaosPlan, area: Area, processes: NodeProcesses, folder: Path, ledger: Path) -> None:
        self._plan, self._area, self._processes, self._folder, self._ledger = plan, area, processes, folder, ledger
        ledger.mkdir(parents=True)
        self._notes = LedgerFile(ledger / "runner.jsonl")
        self._clients: dict[str, NodeProcess] = {}
        self._jobs: dict[str, ClientsJob] = {}
        self._passive: list[NodeProcess] = []  # those that stopped publishing before the end
        self.services: dict[str, NodeService] = {}

    def _url(self, site: str) -> str:
        return f"nats://{self._area.address(site)}:{city.PORT}"

    @contextlib.asynccontextmanager
    async def deployed(self) -> AsyncIterator[None]:
        """Sites, coordinators and clients, all up."""
        configuration = self._folder / "nearcast.toml"
        configuration.write_text(city.configuration_text(self._area.address, cluster=self._plan.cluster))
        settings = self._folder / "coordinator.toml"
        settings.write_text(toml_text(**city.COORDINATOR_SETTINGS))
        for topic in city.TOPICS:
            anonymous = topic.name == city.MQTT_TOPIC
            fields = msgspec.structs.asdict(topic)
            self._notes.note("topic", **fields, processed=topic.processed, anonymous=anonymous)
        try:
            await self._start_sites(configuration)
            for node in city.COORDINATORS:
                await self._start(f"coordinator-{node}", node, partial(self._coordinator, node, settings))
            if self._plan.cluster:
                await self._start_cluster(configuration)
            await self._start_clients()
            yield
        finally:
            await asyncio.gather(*(service.stop() for service in self.services.values()))

    async def _start(self, name: str, node: str, begin: Callable[[int], Any], limit: float = _READY_LIMIT) -> None:
        self.services[name] = NodeService(name, node, begin)
        await self.services[name].start(limit)

    async def _start_sites(self, configuration: Path) -> None:
        begin = {site: partial(self._site, site, configuration) for site in city.SITES}
        await asyncio.gather(*(self._start(site, site, begin[site]) for site in city.SITES))
        await wait_for_gateways(configuration, partial(call_at, self._area))

    async def _site(self, site: str, configuration: Path, number: int) -> NodeProcess:
        environment = {LEDGER_VARIABLE: str(self._ledger), SITE_VARIABLE: site}
        arguments = (*NEARCAST, "site", "run", "--config", str(configuration), "--name", site)
        return await self._processes.python(site, f"{site}.{number}", *arguments, environment=environment)

    async def _coordinator(self, node: str, settings: Path, number: int) -> NodeProcess:
        arguments = ("coordinator", "run", "--url", self._url(node), "--site", city.CLOUD, "--settings", str(settings))
        return await self._processes.python(node, f"coordinator-{node}.{number}", *NEARCAST, *arguments)

    async def _start_cluster(self, configuration: Path) -> None:
        self._notes.note(
            "topic", name=city.CHANNEL_TOPIC, quorum=1, replicas=[], processed=False, unordered=True,
            places=[city.CLOUD, city.DRIVER],
        )  # fmt: skip
        catalog = await self._processes.python(
            city.CLOUD, "catalog", "-m", "nearcast.lab.chaos.catalog", str(configuration), niceness=BACKGROUND
        )
        await catalog.finished(_SPARK_LIMIT)
        await self._start("driver", city.CLOUD, partial(self._driver, configuration), _SPARK_LIMIT)

    async def _driver(self, configuration: Path, number: int) -> NodeProcess:
        arguments = (*NEARCAST, "cluster", "run", "--config", str(configuration))
        return await self._processes.python(city.CLOUD, f"driver.{number}", *arguments, niceness=BACKGROUND)

    async def _start_clients(self) -> None:
        jobs = city.client_jobs(self._url)
        if self._plan.cluster:
            publishers, subscribers = jobs[city.devices_node("south")]
            feeders, listeners = city.cluster_jobs(self._url)
            jobs[city.devices_node("south")] = ([*publishers, *feeders], [*subscribers, *listeners])
        self._jobs = {node: ClientsJob(node, *job, str(self._ledger), str(self._folder)) for node, job in jobs.items()}
        starting = [self._start_node(job) for job in self._jobs.values()]
        node, address = city.devices_node(city.MQTT_SITE), self._area.address(city.MQTT_SITE)
        devices = DevicesJob(node, ["m1", "m2"], city.MQTT_SITE, address, city.MQTT_PORT, 5.0, str(self._ledger))
        module = "nearcast.lab.chaos.mqtt_devices"
        starting.append(self._processes.job(node, f"mqtt-{node}", module, devices, _READY_LIMIT))
        self._clients = dict(zip([*jobs, "mqtt"], await asyncio.gather(*starting), strict=True))

    async def _start_node(self, job: ClientsJob) -> NodeProcess:
        name = job.node if not job.clock_offset else f"clock{job.clock_offset:+.0f}"
        return await self._processes.job(job.node, name, "nearcast.lab.chaos.clients", job, _READY_LIMIT)

    @contextlib.asynccontextmanager
    async def false_clock(self, offset: float) -> AsyncIterator[None]:
        """A client whose clock is wrong: publishes inside the block, and stays subscribed after it."""
        publishers, subscribers = city.false_clock_jobs(self._url)
        node = city.devices_node("west")
        process = await self._start_node(
            ClientsJob(node, publishers, subscribers, str(self._ledger), str(self._folder), offset)
        )
        self._passive.append(process)
        yield
        await process.tell(b"stop")
        await process.said(STOPPED, _STOP_LIMIT)

    @contextlib.asynccontextmanager
    async def devices_off(self, node: str) -> AsyncIterator[None]:
        """The clients of a node, which are killed inside the block, are started again after it."""
        for subscriber in self._jobs[node].subscribers:
            self._notes.note("gone", subscriber=subscriber.name)
        yield
        await self._clients[node].has_ended()
        self._clients[node] = await self._start_node(self._jobs[node])

    async def play(self, injector: FaultInjector, tick: Callable[[float], None]) -> Verdict:
        """All phases, then the judgement."""
        plan, phases = self._plan, self._plan.phases
        background = [asyncio.create_task(self._drive()), asyncio.create_task(self._progress(tick))]
        try:
            self._notes.note("phase", phase="warm-up")
            await asyncio.sleep(phases.warm_up)
            self._notes.note("phase", phase="steady")
            await asyncio.sleep(phases.steady)
            for fault in plan.faults:
                start = time.time()
                async with injector.during(fault):
                    await asyncio.sleep(fault.seconds - (time.time() - start))
                fields = msgspec.to_builtins(fault)
                self._notes.note("phase", phase="fault", **fields, at=start, until=time.time())
                self._notes.note("phase", phase="recovery")
                await self._wait_for_services()
                await asyncio.sleep(phases.recovery)
            self._notes.note("phase", phase="drain")
            publishing = self._clients.values()
            await asyncio.gather(*(process.tell(b"stop") for process in publishing))
            await asyncio.gather(*(process.said(STOPPED, _STOP_LIMIT) for process in publishing))
            verdict = await self._judge(time.monotonic() + phases.drain)
            everybody = [*publishing, *self._passive]
            await asyncio.gather(*(process.tell(b"end") for process in everybody))
            await asyncio.gather(*(process.finished(_STOP_LIMIT) for process in everybody))
            return verdict
        finally:
            await cancel_and_wait(*background)

    async def _wait_for_services(self) -> None:
        """Wait until all are up; one that is not is judged by what it does not do."""

        async def wait(service: NodeService) -> None:
            try:
                await service.is_up(_UP_LIMIT)
            except NearcastError as error:
                self._notes.note("not up", service=service.name, reason=str(error))

        await asyncio.gather(*map(wait, self.services.values()))

    async def _judge(self, deadline: float) -> Verdict:
        """Wait until nothing is owed any more, at most until the deadline; then read the stores, and judge."""
        while True:
            missing = await asyncio.to_thread(lambda: owed(read_ledger(self._ledger)))
            if missing == 0 or time.monotonic() > deadline:
                break
            await asyncio.sleep(2.0)
        while True:
            (self._ledger / _DUMP).unlink(missing_ok=True)
            await self._dump(LedgerFile(self._ledger / _DUMP))
            verdict = await asyncio.to_thread(lambda: check(read_ledger(self._ledger)))
            if verdict.kept or time.monotonic() > deadline:
                return verdict
            await asyncio.sleep(5.0)

    async def _dump(self, notes: LedgerFile) -> None:
        """What each store has, and what is given as history at each site that has one."""
        area, durable = self._area, [topic.name for topic in city.TOPICS if topic.quorum]

        async def dump_site(site: str) -> None:
            await dump_store(f"nats://{area.address(site)}:{city.PORT + 3}", site, notes)
            for topic in durable:
                await dump_history(self._url(site), site, topic, notes)

        await call_at(area, city.CLOUD, partial(dump_replicas, self._url(city.CLOUD), durable, notes))
        await asyncio.gather(*(call_at(area, site, partial(dump_site, site)) for site in city.STORES))
        notes.close()

    async def _drive(self) -> None:
        """The van drives from site to site."""
        rng = np.random.default_rng((self._plan.seed, 1))
        while True:
            await asyncio.sleep(float(rng.uniform(15.0, 25.0)))
            near = str(rng.choice(city.SITES[:-1]))
            for site, way in city.ways(near).items():
                self._area.set(city.VAN, site, delay_ms=way)

    async def _progress(self, tick: Callable[[float], None]) -> None:
        start = time.monotonic()
        while True:
            tick(min(1.0, (time.monotonic() - start) / (self._plan.seconds + self._plan.phases.drain)))
            await asyncio.sleep(1.0)
