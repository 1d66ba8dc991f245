"""Two sites and a data cluster for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nearcast
from nearcast.auth.deployment_keys import add_tls, make_deployment_keys
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.deployment import AuthSpec, ClusterSpec, Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import Credentials
from nearcast.site.ports import free_ports

KINDS = ("fire", "flood", "quake")


def two_sites(folder: Path, *, secured: bool = False) -> Deployment:
    """An edge and the cloud, with a warehouse. secured: with credentials and TLS."""
    specs = []
    for name, kind in (("edge", "edge"), ("cloud", "cloud")):
        (folder / "stores" / name).mkdir(parents=True, exist_ok=True)
        specs.append(SiteSpec(name, kind, port=free_ports(), store=StoreSpec(folder / "stores" / name)))  # type: ignore[arg-type]
    auth = None
    if secured:
        add_tls(make_deployment_keys(folder / "auth", specs), specs)
        auth = AuthSpec(folder / "auth")
    return Deployment(tuple(specs), cluster=ClusterSpec(str(folder / "warehouse"), batch_rows=500), auth=auth)


async def until(condition: Callable[[], Any], what: str, limit: float = 150.0) -> None:
    """Wait for a condition, with a limit."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit:g} s")
        await asyncio.sleep(0.05)


async def feed_all(client: nearcast.Client, dataset: str, records: list[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for record in records:
            group.create_task(client.feed(dataset, record, timeout=30))


class Inbox:
    """All results of one subscription."""

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        self.name, self.params = name, params
        self.ids: list[str] = []
        self.results: list[dict[str, Any]] = []

    def take(self, message: nearcast.Message) -> None:
        self.ids.append(message.id)
        self.results.append(message.data)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for result in self.results for row in result["rows"]]


async def subscribe_all(client: nearcast.Client, wanted: list[tuple[str, dict[str, Any]]]) -> list[Inbox]:
    """Returns when all are active: the data cluster must be running, or be started soon."""
    inboxes = [Inbox(name, params) for name, params in wanted]

    async def subscribe(inbox: Inbox) -> None:
        await client.subscribe(channel=inbox.name, params=inbox.params, callback=inbox.take)

    await asyncio.gather(*map(subscribe, inboxes))
    return inboxes


def write_configuration(deployment: Deployment, folder: Path, master: str = "local[2]", batch_rows: int = 1000) -> Path:
    lines = ["[cluster]", f'warehouse = "{folder / "warehouse"}"', f'master = "{master}"', f"batch_rows = {batch_rows}"]
    for site in deployment.sites:
        assert site.store is not None
        lines += ["[[site]]", f'name = "{site.name}"', f'kind = "{site.kind}"', f"port = {site.port}"]
        lines += [f'store = {{ directory = "{site.store.directory}" }}']
    if deployment.auth is not None:
        lines += ["[auth]", f'folder = "{deployment.auth.folder}"']
    path = folder / "nearcast.toml"
    path.write_text("\n".join(lines))
    return path


class DriverProcess:
    """`nearcast cluster run` as a process group. longest_in_driver: a batch of more records is the executors'."""

    def __init__(self, configuration: Path, longest_in_driver: int = 4000) -> None:
        lanes = f"from nearcast.cluster.nats_source import driver_read; driver_read._MOST = {longest_in_driver}"
        self._command = [sys.executable, "-c", f"{lanes}; from nearcast.cli import main; main()"]
        self._command += ["cluster", "run", "--config", str(configuration)]
        self._log = configuration.parent / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    async def ready(self) -> None:
        """Wait until Spark is up: a subscription waits for a minute, and a busy machine may take longer."""

        def is_ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            return "Ready." in self._log.read_text()

        await until(is_ready, "the driver", 400)

    def kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        """Send Ctrl-C; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(60)


async def add_report_channels(deployment: Deployment, credentials: Credentials | None = None) -> None:
    """A dataset of reports, a continuous and a scheduled channel over it."""
    connection = await open_connection([deployment.cloud().url], name="catalog", credentials=credentials)
    catalog = Catalog(connection, "cloud")
    await catalog.prepare()
    await catalog.add_dataset(DatasetSpec("reports", "id STRING NOT NULL, kind STRING", "fed.reports"))
    query, kind = "SELECT r.id FROM reports r WHERE r.kind = :kind", (Parameter("kind", "string"),)
    await catalog.add_channel(ChannelSpec("of_kind", query, kind, None, "reports"))
    await catalog.add_channel(ChannelSpec("by_period", query, kind, 0.5, "reports"))
    await connection.close()
