"""The processes of the city: sites, coordinators, console and data cluster, started, killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.deployment_keys import add_tls, make_deployment_keys
from nearcast.config.deployment_file import read_sites
from nearcast.errors import NearcastError
from nearcast.lab.chaos.services import NodeService
from nearcast.lab.demo.city import CLOUD, COORDINATOR_SETTINGS, ZONES
from nearcast.lab.demo.console_announcements import ConsoleAnnouncements
from nearcast.lab.demo.data_cluster import READY
from nearcast.lab.scenarios.processes import BACKGROUND, NEARCAST, NodeProcess, NodeProcesses, node_processes
from nearcast.lab.scenarios.startup import keep_logs, toml_text, wait_for_coordinator, wait_for_gateways
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.identity.credentials import VARIABLE, given_credentials
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from pathlib import Path

    from nearcast.lab.demo.city import City
    from nearcast.lab.demo.nodes import Nodes

__all__ = ["CityDeployment", "Say", "deployed"]

Say = Callable[[str], None]
_START_LIMIT = 120.0
_SPARK_LIMIT = 400.0
_COORDINATORS = (CLOUD, "campus")
_CONSOLE_PORT = 8600


class CityDeployment:
    """What runs. folder: for all files but logs."""

    def __init__(
        self, city: City, nodes: Nodes, processes: NodeProcesses, folder: Path, say: Say, *, cluster: bool
    ) -> None:
        self.city, self.nodes, self.folder = city, nodes, folder
        self._processes, self._say, self._cluster = processes, say, cluster
        self._configuration = folder / "nearcast.toml"
        self._services: dict[str, NodeService] = {}
        self._first: dict[str, int] = {}  # the process that each site was started with last
        self._listener: socket.socket | None = None
        self.auth = AuthFolder(folder / "auth")
        self.console, self._link = "", secrets.token_urlsafe(24)
        self.announcements: ConsoleAnnouncements | None = None
        self.data_cluster: asyncio.Task[None] | None = None

    def url(self, site: str) -> str:
        """Of a site's broker."""
        host, port = self.nodes.address(site)
        return f"nats://{host}:{port}"

    async def start(self) -> None:
        """Keys, sites, coordinators and the console. The data cluster starts in the background."""
        self._open_console()
        if self._cluster:  # Spark begins to start while the rest waits for keys and sites
            spark = await self._start_spark()
        for site in (*ZONES, CLOUD):
            (self.folder / "stores" / site).mkdir(parents=True)
        self._configuration.write_text(self.city.configuration(self.nodes.address, cluster=self._cluster))
        sites = read_sites(self._configuration)
        self.auth = await asyncio.to_thread(make_deployment_keys, self.folder / "auth", sites)
        await asyncio.to_thread(add_tls, self.auth, sites)
        self._say(f"Keys and certificates for {len(sites)} sites are made.")
        await asyncio.gather(*(self._start(site, site, partial(self._site, site)) for site in (*ZONES, CLOUD)))
        await wait_for_gateways(self._configuration, self.nodes.call)
        self._say(f"Sites are up: {', '.join(ZONES)} and the cloud, each with broker, store and worker.")
        settings = self.folder / "coordinator.toml"
        settings.write_text(toml_text(**COORDINATOR_SETTINGS))
        await asyncio.gather(
            *(
                self._start(f"coordinator-{node}", node, partial(self._coordinator, node, settings))
                for node in _COORDINATORS
            ),
            *([self._start("console", CLOUD, self._console)] if self.console else []),
        )
        self._say(f"Two coordinators are up{', and the console' if self.console else ''}.")
        if self._cluster:
            self.data_cluster = asyncio.create_task(_begin(spark), name="start the data cluster")

    async def stop(self) -> None:
        """Nothing is started again; who owns the processes ends them."""
        await asyncio.gather(*(service.stop() for service in self._services.values()))
        await cancel_and_wait(self.data_cluster)
        if self._listener is not None:
            self._listener.close()

    async def kill_site(self, site: str) -> int:
        """Kill every process of a site at once; returns how many. It stays down until `start_site`."""
        self._services[site].hold()
        pids = self.nodes.processes(site, self._first[site])
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    async def start_site(self, site: str) -> None:
        """Start it again, and wait until it is up."""
        self._services[site].release()
        await self._services[site].is_up(_START_LIMIT)

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Connection]:
        """A connection as the operator; only for code that runs at the cloud."""
        credentials = given_credentials(self._user("admin"))
        connection = await open_connection([self.url(CLOUD)], name="demo", timeout=20, credentials=credentials)
        try:
            yield connection
        finally:
            await connection.close()

    async def wait_until_measured(self, limit: float) -> None:
        """Wait until all sites registered and measured each other, but no longer than so many seconds."""

        async def ready() -> None:
            async with self.operator() as connection:
                with contextlib.suppress(NearcastError):
                    await wait_for_coordinator(connection, len(ZONES) + 1, limit)

        await self.nodes.call(CLOUD, ready)

    def _user(self, name: str) -> Path:
        return self.auth.credentials_file(name, "main")

    async def _start(self, name: str, node: str, begin: Callable[[int], Any]) -> None:
        self._services[name] = NodeService(name, node, begin)
        await self._services[name].start(_START_LIMIT)

    async def _site(self, site: str, number: int) -> NodeProcess:
        arguments = (*NEARCAST, "site", "run", "--config", str(self._configuration), "--name", site)
        process = await self._processes.python(site, f"{site}.{number}", *arguments)
        self._first[site] = process.pid
        return process

    async def _coordinator(self, node: str, settings: Path, number: int) -> NodeProcess:
        arguments = ("coordinator", "run", "--url", self.url(node), "--site", CLOUD, "--settings", str(settings))
        credentials = {VARIABLE: str(self._user("coordinator"))}
        name = f"coordinator-{node}.{number}"
        return await self._processes.python(node, name, *NEARCAST, *arguments, environment=credentials)

    def _open_console(self) -> None:
        """Its socket is opened here, outside of the wide area, where a browser can reach it; early visitors wait."""
        if find_spec("nicegui") is None:
            self._say('There is no console: pip install "nearcast[web]"')
            return
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind(("127.0.0.1", _CONSOLE_PORT))
        except OSError:
            self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.announcements = ConsoleAnnouncements(address, self._link)
        self.console = f"{address}/login#link={self._link}"
        self._say(f"Console: {self.console}  (this link logs in; it answers once the sites are up)")

    async def _console(self, number: int) -> NodeProcess:
        assert self._listener is not None
        descriptor = self._listener.fileno()
        arguments = ("web", "--link", "--url", self.url(CLOUD), "--socket", str(descriptor))
        credentials = {VARIABLE: str(self._user("admin")), "NEARCAST_CONSOLE_LINK": self._link}
        return await self._processes.python(
            CLOUD, f"console.{number}", *NEARCAST, *arguments, environment=credentials, descriptors=[descriptor]
        )

    async def _start_spark(self) -> NodeProcess:
        shelters = self.folder / "shelters.jsonl"
        shelters.write_text("\n".join(map(json.dumps, self.city.shelters)))
        credentials = self.folder / "auth" / "users" / "main" / "cluster.creds"  # made while it starts
        return await self._processes.python(
            CLOUD, "data-cluster", "-m", "nearcast.lab.demo.data_cluster", str(self._configuration), str(shelters),
            environment={VARIABLE: str(credentials)}, niceness=BACKGROUND,
        )  # fmt: skip


async def _begin(spark: NodeProcess) -> None:
    """Tell the data cluster that the sites are up, and wait until it is."""
    with contextlib.suppress(OSError):  # it has ended; `said` says why
        await spark.tell(b"the sites are up")
    await spark.said(READY, _SPARK_LIMIT)


@contextlib.asynccontextmanager
async def deployed(
    city: City, nodes: Nodes, folder: Path, logs: Path, say: Say, *, cluster: bool
) -> AsyncIterator[CityDeployment]:
    """The city's processes, up inside the block. Their logs are kept."""
    async with node_processes(nodes.command, logs, niceness=0) as processes:
        deployment = CityDeployment(city, nodes, processes, folder, say, cluster=cluster)
        try:
            await deployment.start()
            yield deployment
        finally:
            await deployment.stop()
            keep_logs(folder, logs)
