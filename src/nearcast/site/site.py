"""A running site: its servers and workers, started in order, kept up, and stopped without leaving anything behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import urllib.request
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.domain.errors import InputError, NearcastError
from nearcast.site.agent import Agent
from nearcast.site.ports import port_problem
from nearcast.site.process import Supervised
from nearcast.site.servers import broker_config, server_binary, store_config
from nearcast.site.worker import Assignment, WorkerStats
from nearcast.wire import subjects
from nearcast.wire.connection import Connection, open_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
    from pathlib import Path

    from nearcast.domain.deployment import Deployment

__all__ = ["Site", "run_sites"]

_log = logging.getLogger(__name__)
_START_LIMIT = 30.0


class Site:
    """One site of a deployment, running on this machine. Use it as an async context manager."""

    def __init__(self, deployment: Deployment, name: str, run_directory: Path, search_path: Sequence[str] = ()) -> None:
        self.deployment = deployment
        self.spec = deployment.site(name)
        self.run_directory = run_directory
        self._search_path = list(search_path)
        self.broker: Supervised | None = None
        self.store: Supervised | None = None
        self.workers: dict[str, Supervised] = {}
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
        for worker, assignment in self._assignments().items():
            process = Supervised(
                f"{spec.name}/{worker}",
                [sys.executable, "-m", "nearcast.site.worker"],
                folder / f"{worker}.log",
                ready=lambda worker=worker: self._worker_answers(worker),  # type: ignore[misc]
                stdin=msgspec.json.encode(assignment),
            )
            self.workers[worker] = process
            await process.start()

    async def stop(self) -> None:
        """Workers first, so that nothing is published into a broker that is going; the broker last."""
        await asyncio.gather(*(worker.stop() for worker in self.workers.values()))
        self.workers.clear()
        if self.agent is not None:
            await self.agent.stop()
        if self._connection is not None:
            await self._connection.close()
        for server in (self.store, self.broker):
            if server is not None:
                await server.stop()

    async def worker_stats(self) -> list[WorkerStats]:
        """What each worker has done since it started."""
        return [await self._ask_worker(worker) for worker in self.workers]

    def _assignments(self) -> dict[str, Assignment]:
        """Deal the managed topics out to the site's workers; no more workers than topics."""
        topics = self.deployment.managed_at(self.spec.name)
        number = min(self.spec.workers, len(topics))
        return {
            f"worker-{n}": Assignment(
                site=self.spec.name,
                worker=f"worker-{n}",
                url=self.spec.url,
                run_directory=str(self.run_directory),
                modules=list(self.deployment.modules),
                search_path=self._search_path,
                topics=list(topics[n::number]),
            )
            for n in range(number)
        }

    def _server(self, role: str, port: int) -> Supervised:
        name = f"{self.spec.name}/{role}"
        config = self.run_directory / f"{role}.conf"
        return Supervised(
            name,
            [server_binary(), "-c", str(config)],
            self.run_directory / f"{role}.log",
            ready=lambda: _server_answers(name, self.spec.host, port),
        )

    async def _worker_answers(self, worker: str) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + 2 * _START_LIMIT
        while True:
            try:
                await self._ask_worker(worker)
                return
            except NearcastError:
                if clock() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _ask_worker(self, worker: str) -> WorkerStats:
        assert self._connection is not None
        reply = await ask(self._connection, subjects.worker(self.spec.name, worker), b"")
        return msgspec.json.decode(reply, type=WorkerStats)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())


async def ask(connection: Connection, subject: str, payload: bytes, timeout: float = 2.0) -> bytes:
    """One request, one answer, or a NearcastError."""
    try:
        return bytes((await connection.request(subject, payload, timeout=timeout)).data)
    except (NatsError, TimeoutError) as error:
        raise NearcastError(f"no answer on {subject}: {error or 'timed out'}") from error


async def _server_answers(name: str, host: str, port: int) -> None:
    """Wait until a nats-server greets at its client port."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + _START_LIMIT
    while clock() < deadline:
        with contextlib.suppress(OSError):
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
        await _all(site.start_broker() for site in sites.values())
        await _all(site.has_joined(wanted) for site in sites.values())
        await _all(site.start_rest() for site in sites.values())
        yield sites
    finally:
        await asyncio.gather(*(site.stop() for site in sites.values()))


async def _all(starts: Iterable[Coroutine[None, None, None]]) -> None:
    """Run together; when one fails, end the others before its error is raised."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
