"""A running site: its servers and its agent, started in order, kept running, stopped without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import read_credentials, write_secret
from nearcast.nats.tasks import gather_or_cancel, retry
from nearcast.protocol.control import Notice
from nearcast.site.agent.agent import Agent
from nearcast.site.limit_enforcer import LimitEnforcer
from nearcast.site.ports import IN_USE, host_problem, port_problem
from nearcast.site.reload import SecurityReload
from nearcast.site.security import SiteSecurity, refuse_open_site, site_security
from nearcast.site.servers import broker_config, fetch_monitoring, server_binary, server_is_ready, store_config
from nearcast.site.store_writes import StoreWrites
from nearcast.site.supervisor import SupervisedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from nearcast.domain.deployment import Deployment
    from nearcast.protocol.worker import WorkerStats

__all__ = ["Site", "run_sites"]

_log = logging.getLogger(__name__)
_START_LIMIT = 30.0
_TELL_LIMIT = 2
_PREDECESSOR_LIMIT = 10.0  # the servers of a site that was killed get a signal and end by themselves


class Site:
    """One site of a deployment, running on this machine. Use it as an async context manager.

    agents: by tenant. agent: that of the deployment's own tenant.
    """

    def __init__(self, deployment: Deployment, name: str, run_directory: Path, search_path: Sequence[str] = ()) -> None:
        self.deployment = deployment
        self.spec = deployment.site(name)
        self.run_directory = run_directory
        self._search_path = search_path
        self.broker: SupervisedProcess | None = None
        self.store: SupervisedProcess | None = None
        self.agents: dict[str, Agent] = {}
        self.agent: Agent | None = None
        self.security: SiteSecurity | None = None
        self.limits: LimitEnforcer | None = None
        self._writes: StoreWrites | None = None
        self._started = contextlib.AsyncExitStack()

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
        """Broker, then store, then the agent with its workers: each waits for what it needs."""
        await self.start_broker()
        await self.start_rest()

    @property
    def _monitor_path_file(self) -> Path:
        return self.run_directory / "monitor_path"

    async def start_broker(self) -> None:
        """Start the broker alone; sites that start together do this first, so that they find each other."""
        refuse_missing_store(self)
        await self._wait_for_ports()
        make_run_directory(self)
        self.security = site_security(self.deployment, self.spec.name)
        refuse_open_site(self.deployment, self.spec, self.security)
        self._monitor_path_file.unlink(missing_ok=True)
        if self.security is not None:
            # The monitoring port tells everybody on this machine the tokens of all connections, and the token of an
            # MQTT device is its password. It asks for no credentials, so its paths are secret.
            path = f"/{secrets.token_hex(16)}"
            write_secret(self._monitor_path_file, path)
            self.spec = msgspec.structs.replace(self.spec, monitor_path=path)
        config = broker_config(self.spec, self.deployment.peers(self.spec.name), self.run_directory, self.security)
        self.broker = await self._start_server("broker", config, self.spec.port)

    async def _wait_for_ports(self) -> None:
        async def check() -> None:
            refuse_ports_in_use(self)

        try:
            await check()
        except PortInUseError as error:
            _log.warning("%s; waiting %g s for a predecessor to end", error, _PREDECESSOR_LIMIT)
            await retry(check, within=_PREDECESSOR_LIMIT, on=PortInUseError, pause=0.1)

    async def wait_for_gateways(self, sites: Sequence[str]) -> None:
        """Wait until the broker has a gateway to each of these other sites: before that, messages to them are lost.

        The broker may be run by another process of this user.
        """
        others, spec = set(sites) - {self.spec.name}, self.spec
        if not spec.monitor_path and self._monitor_path_file.exists():
            spec = msgspec.structs.replace(spec, monitor_path=self._monitor_path_file.read_text())

        async def check() -> None:
            joined = (await fetch_monitoring(spec, "gatewayz")).get("outbound_gateways", {})
            if missing := others - joined.keys():
                raise NearcastError(f"site {self.spec.name} found no gateway to {', '.join(sorted(missing))}")

        if others:
            await retry(check, within=_START_LIMIT, on=(OSError, NearcastError), pause=0.02)

    async def start_rest(self) -> None:
        """Store, agent and workers."""
        spec, folder = self.spec, self.run_directory
        if spec.store is not None:
            self._writes = StoreWrites(spec.name, folder / "store.log", spec.store.directory)
            config = store_config(spec, folder, self.security)
            self.store = await self._start_server("store", config, spec.store_port, self._writes)
        await gather_or_cancel(*(self._start_agent(deployment) for deployment in self.deployment.by_tenant()))
        if self.security is not None and self.broker is not None:
            told = folder / "accounts"
            reload = SecurityReload(
                self.security,
                told,
                self.broker,
                self.store,
                folder / "store.conf",
                lambda: store_config(spec, folder, self.security, told),
            )
            self._started.push_async_callback(reload.stop)
            reload.start()
            await self._start_limits(self.security)

    async def _start_limits(self, security: SiteSecurity) -> None:
        """Watch what clients send through the broker."""
        file = security.folder.monitor_file(self.spec.name)
        if not file.is_file():
            _log.warning("site %s: rates are not limited: %s is missing", self.spec.name, file)
            return
        told = self.run_directory / "accounts"
        self.limits = LimitEnforcer(
            self.spec, read_credentials(file), lambda: security.tenant_limits(told), self._tell_client
        )
        self._started.push_async_callback(self.limits.stop)
        await self.limits.start()

    async def _start_agent(self, deployment: Deployment) -> None:
        """A tenant's agent, with workers of its own, on a connection that sees its account only.

        The first tenant, whose deployment this is, has the site's folder and metrics; others have folders in it.
        """
        first, security, folder = deployment is self.deployment, self.security, self.run_directory
        if security is not None and deployment.auth is not None and not first:
            security = replace(security, tenant=deployment.auth.tenant)
            folder = folder / "tenants" / security.tenant
        folder.mkdir(parents=True, exist_ok=True)
        tenant = security.tenant if security is not None else ""
        connection = await open_connection(
            [self.spec.url],
            name=f"{self.spec.name}/agent",
            timeout=_START_LIMIT,
            credentials=security.credentials("site") if security is not None else None,
        )
        self._started.push_async_callback(connection.close)
        agent = self.agents[tenant] = Agent(
            deployment,
            self.spec,
            connection,
            folder,
            self._search_path,
            str(security.credentials("worker").path) if security is not None else "",
            lambda: self.limits.closed(tenant) if self.limits is not None else {},
            lambda: self._writes is None or not self._writes.failed,
            metrics=first,
        )
        if first:
            self.agent = agent
        self._started.push_async_callback(agent.stop)
        await agent.start()

    async def _tell_client(self, tenant: str, user: str, reason: str, seconds: float) -> None:
        """Tell a client why its connections are closed, and for how long; returns when the broker has it."""
        if tenant in self.agents:
            connection = self.agents[tenant].connection
            connection.send(subjects.client_notice(user), b"", msgspec.json.encode(Notice(reason, seconds)))
            await connection.flush(_TELL_LIMIT)

    async def stop(self) -> None:
        """Workers first, so that nothing is published into a broker that is going; the broker last."""
        await self._started.aclose()

    @property
    def workers(self) -> dict[str, SupervisedProcess]:
        """The worker processes, by name."""
        return self.agent.workers.processes if self.agent is not None else {}

    async def worker_stats(self) -> list[WorkerStats]:
        """What each worker has done since it started."""
        return await self.agent.workers.stats() if self.agent is not None else []

    async def _start_server(
        self, role: str, config: str, port: int, writes: StoreWrites | None = None
    ) -> SupervisedProcess:
        name, host = f"{self.spec.name}/{role}", self.spec.host
        file = self.run_directory / f"{role}.conf"
        write_secret(file, config)  # it has the password of the gateways

        tls = self.security.tls.context() if self.security is not None and self.security.tls is not None else None

        async def ready() -> None:
            try:
                on = (OSError, TimeoutError)
                await retry(lambda: server_is_ready(host, port, tls), within=_START_LIMIT, on=on, pause=0.02)
            except on:
                raise NearcastError(f"{name} did not answer on port {port} within {_START_LIMIT:g} s") from None
            if writes is not None:
                writes.restarted()

        async def answers() -> None:
            await server_is_ready(host, port, tls)
            if writes is not None:
                writes.check()

        command = [server_binary(), "-c", str(file)]
        server = SupervisedProcess(name, command, self.run_directory / f"{role}.log", ready, answers=answers)
        self._started.push_async_callback(server.stop)
        await server.start()
        return server


class PortInUseError(InputError):
    """Another program listens on a port of a site."""


def refuse_ports_in_use(site: Site) -> None:
    """Say that the host is not this machine's, or which port is taken, before a server fails over it."""
    if problem := host_problem(site.spec.host):
        raise InputError(f"site {site.spec.name}: host {site.spec.host!r} {problem}; choose another `host`")
    for what, port in site.spec.ports().items():
        elsewhere = {"monitoring": site.spec.monitor_host, "metrics": site.spec.metrics_host}
        host = elsewhere.get(what, site.spec.host)
        if problem := port_problem(host, port):
            kind = PortInUseError if problem == IN_USE else InputError
            raise kind(f"site {site.spec.name}: port {port} ({what}) of {host} {problem}; choose another `port`")


def refuse_missing_store(site: Site) -> None:
    """A store's directory must be there: making it up could mean writing beside the disk that was not mounted."""
    store = site.spec.store
    if store is not None and not store.directory.is_dir():
        raise InputError(
            f"site {site.spec.name}: store directory {str(store.directory)!r} is not a directory; make it first"
        )


def make_run_directory(site: Site) -> None:
    """Make the folder of a site's logs, spools and server files."""
    try:
        site.run_directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"site {site.spec.name}: run directory {str(site.run_directory)!r} cannot be made: {error.strerror}; "
            "choose another one with --run-directory"
        ) from None


@contextlib.asynccontextmanager
async def run_sites(
    deployment: Deployment, run_directory: Path, search_path: Sequence[str] = (), names: Sequence[str] | None = None
) -> AsyncIterator[dict[str, Site]]:
    """All sites of a deployment on this machine (or those named): brokers first, then the rest, stopped together."""
    wanted = [site.name for site in deployment.sites] if names is None else list(names)
    sites = {name: Site(deployment, name, run_directory / name, search_path) for name in wanted}
    try:
        await gather_or_cancel(*(site.start_broker() for site in sites.values()))
        await gather_or_cancel(*(site.wait_for_gateways(wanted) for site in sites.values()))
        await gather_or_cancel(*(site.start_rest() for site in sites.values()))
        yield sites
    finally:
        await asyncio.gather(*(site.stop() for site in sites.values()))
