"""A running site: its servers and workers, started in order, kept up, and stopped without leaving anything behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import urllib.request
from typing import TYPE_CHECKING

from nearcast.errors import InputError, NearcastError
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.coordinator_rpc import CoordinatorError
from nearcast.nats.tasks import gather_or_cancel
from nearcast.site.agent import Agent
from nearcast.site.hosting import Hosting
from nearcast.site.place import CoordinateAgent
from nearcast.site.ports import port_problem
from nearcast.site.process import Supervised
from nearcast.site.reporting import Reporting
from nearcast.site.servers import broker_config, server_binary, store_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from nearcast.domain.deployment import Deployment
    from nearcast.protocol.control import Assignments
    from nearcast.protocol.worker import WorkerStats

__all__ = ["Site", "run_sites"]

_log = logging.getLogger(__name__)
_START_LIMIT = 30.0
_GREETING_LIMIT = 5.0
_COORDINATOR_LIMIT = 5.0


class Site:
    """One site of a deployment, running on this machine. Use it as an async context manager."""

    def __init__(self, deployment: Deployment, name: str, run_directory: Path, search_path: Sequence[str] = ()) -> None:
        self.deployment = deployment
        self.spec = deployment.site(name)
        self.run_directory = run_directory
        self._search_path = list(search_path)
        self.broker: Supervised | None = None
        self.store: Supervised | None = None
        self.hosting: Hosting | None = None
        self.place: CoordinateAgent | None = None
        self.reporting: Reporting | None = None
        self.agent: Agent | None = None
        self._connection: Connection | None = None

    async def __aenter__(self) -> Site:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Broker, then store, then the agent, then workers: each waits for what it needs."""
        await self.start_broker()
        await self.start_rest()

    async def start_broker(self) -> None:
        """Start the broker alone; sites that start together do this first, so that they find each other."""
        refuse_ports_in_use(self)
        refuse_missing_store(self)
        spec, folder = self.spec, self.run_directory
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "broker.conf").write_text(broker_config(spec, self.deployment.peers(spec.name), folder))
        self.broker = self._server("broker", spec.port)
        await self.broker.start()

    async def has_joined(self, sites: Sequence[str]) -> None:
        """Wait until the broker has a gateway to each of these other sites: before that, messages to them are lost."""
        others = set(sites) - {self.spec.name}
        url = f"http://{self.spec.host}:{self.spec.monitor_port}/gatewayz"
        clock = asyncio.get_running_loop().time
        deadline = clock() + _START_LIMIT
        missing = others
        while missing:
            if clock() > deadline:
                raise NearcastError(f"site {self.spec.name} found no gateway to {', '.join(sorted(missing))}")
            await asyncio.sleep(0.02)
            with contextlib.suppress(OSError):
                joined = json.loads(await asyncio.to_thread(_get, url)).get("outbound_gateways", {})
                missing = others - joined.keys()

    async def start_rest(self) -> None:
        """Store, agent and workers."""
        spec, folder = self.spec, self.run_directory
        if spec.store is not None:
            (folder / "store.conf").write_text(store_config(spec, folder))
            self.store = self._server("store", spec.store_port)
            await self.store.start()
        self._connection = await open_connection([spec.url], name=f"{spec.name}/agent", timeout=_START_LIMIT)
        self.agent = Agent(self.deployment, spec, self._connection)
        await self.agent.start()
        self.hosting = Hosting(self.deployment, spec, self._connection, folder, self._search_path)
        self.hosting.on_records = self.agent.follow
        self.place = CoordinateAgent(spec, self.deployment.peers(spec.name), self._connection)
        self.reporting = Reporting(self.deployment, spec, self._connection, self.hosting, self.place)
        assignments = None
        if self.hosting.has_known_a_coordinator:  # what was assigned here before may have gone elsewhere
            assignments = await self._ask_what_to_run(self.reporting)
        await self.hosting.start(assignments)
        await self.place.start()
        await self.reporting.start()

    async def _ask_what_to_run(self, reporting: Reporting) -> Assignments | None:
        """The registry's word, if a coordinator answers soon; the broker may still be finding the others."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _COORDINATOR_LIMIT
        while clock() < deadline:
            try:
                return await reporting.register(1.0)
            except CoordinatorError:
                await asyncio.sleep(0.1)
        return None

    async def stop(self) -> None:
        """Workers first, so that nothing is published into a broker that is going; the broker last."""
        for part in (self.reporting, self.place, self.hosting):
            if part is not None:
                await part.stop()
        if self.agent is not None:
            await self.agent.stop()
        if self._connection is not None:
            await self._connection.close()
        for server in (self.store, self.broker):
            if server is not None:
                await server.stop()

    @property
    def workers(self) -> dict[str, Supervised]:
        """The worker processes, by name."""
        return self.hosting.workers if self.hosting is not None else {}

    async def worker_stats(self) -> list[WorkerStats]:
        """What each worker has done since it started."""
        return await self.hosting.stats() if self.hosting is not None else []

    def _server(self, role: str, port: int) -> Supervised:
        name = f"{self.spec.name}/{role}"
        config = self.run_directory / f"{role}.conf"
        return Supervised(
            name,
            [server_binary(), "-c", str(config)],
            self.run_directory / f"{role}.log",
            ready=lambda: _server_answers(name, self.spec.host, port),
        )


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())


async def _server_answers(name: str, host: str, port: int) -> None:
    """Wait until a nats-server greets at its client port."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + _START_LIMIT
    while clock() < deadline:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_GREETING_LIMIT):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    if (await reader.readline()).startswith(b"INFO "):
                        return
                finally:
                    writer.close()
        await asyncio.sleep(0.02)
    raise NearcastError(f"{name} did not answer on port {port} within {_START_LIMIT:g} s")


def refuse_ports_in_use(site: Site) -> None:
    """Say which port is taken before a server fails over it."""
    for what, port in site.spec.ports().items():
        if problem := port_problem(site.spec.host, port):
            raise InputError(
                f"site {site.spec.name}: port {port} ({what}) of {site.spec.host} {problem}; choose another `port`"
            )


def refuse_missing_store(site: Site) -> None:
    """A store's directory must be there: making it up could mean writing beside the disk that was not mounted."""
    store = site.spec.store
    if store is not None and not store.directory.is_dir():
        raise InputError(
            f"site {site.spec.name}: store directory {str(store.directory)!r} is not a directory; make it first"
        )


@contextlib.asynccontextmanager
async def run_sites(
    deployment: Deployment, run_directory: Path, search_path: Sequence[str] = (), names: Sequence[str] | None = None
) -> AsyncIterator[dict[str, Site]]:
    """All sites of a deployment on this machine (or those named): brokers first, then the rest, stopped together."""
    wanted = [site.name for site in deployment.sites] if names is None else list(names)
    sites = {name: Site(deployment, name, run_directory / name, search_path) for name in wanted}
    try:
        await gather_or_cancel(*(site.start_broker() for site in sites.values()))
        await gather_or_cancel(*(site.has_joined(wanted) for site in sites.values()))
        await gather_or_cancel(*(site.start_rest() for site in sites.values()))
        yield sites
    finally:
        await asyncio.gather(*(site.stop() for site in sites.values()))
