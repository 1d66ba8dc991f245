"""A secured deployment for the tests of each module here: sites edge and cloud, a coordinator, a user of each role."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
import pytest
import pytest_asyncio
from tests.system.control import QUICK

from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.role_table import example_grants, role_users
from nearcast.coordinator.leadership import Coordinator
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.identity.credentials import read_credentials
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import RunningSites, sites, until

PROCESSOR = """
from nearcast import processor

@processor("gps.*", spool=5)
def echo(message, spool):
    yield {"n": message.data["n"]}
"""
GPS = TopicSpec("gps.*", ("edge",), ("edge", "cloud"), quorum=2)
# On a busy machine nobody is to lose a lease by itself.
PATIENT = msgspec.structs.replace(QUICK, lease=6.0, site_lost_after=60.0, client_lost_after=60.0)


@dataclass
class Secured:
    """The deployment, its coordinator, and the connections of others that must never drop."""

    running: RunningSites
    coordinator: Coordinator
    lost: list[str]

    @property
    def auth(self) -> AuthFolder:
        assert self.running.auth is not None
        return self.running.auth

    @contextlib.asynccontextmanager
    async def connected(self, user: str, site: str = "edge") -> AsyncIterator[Connection]:
        """A connection as this user."""
        connection = await self.open(user, site)
        try:
            yield connection
        finally:
            await connection.close()

    async def open(self, user: str, site: str = "edge") -> Connection:
        credentials = read_credentials(self.auth.credentials_file(user, "main"))
        return await open_connection([self.running.url(site)], name=user, credentials=credentials)

    def watch(self, connection: Connection) -> None:
        """Note when a connection of somebody else drops."""

        async def disconnected(name: str = str(connection.options["name"])) -> None:
            self.lost.append(name)

        connection._disconnected_cb = disconnected

    async def reported(self) -> None:
        """Each site reports once more to the coordinator that leads."""
        await until(self.coordinator.leading.is_set, 60)
        assert self.coordinator.leader is not None
        monitor = self.coordinator.leader.monitor
        for site in self.running.sites:
            seen = monitor.reports.get(site)
            await until(lambda site=site, seen=seen: monitor.reports.get(site) not in (None, seen), 60)  # type: ignore[misc]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "secured_processor.py").write_text(PROCESSOR)
    async with sites(
        GPS,
        processors=["secured_processor"],
        search_path=[str(folder)],
        folder=folder,
        secured=True,
        report_seconds=0.5,
    ) as running:
        assert running.auth is not None
        for role, user, site in role_users():
            with contextlib.suppress(InputError):  # made with the deployment's keys
                running.auth.add_user(role, user, grants=example_grants(role), site=site)
        credentials = read_credentials(running.auth.credentials_file("coordinator", "main"))
        connection = await open_connection([running.url("cloud")], name="coordinator", credentials=credentials)
        coordinator = Coordinator(connection, "cloud", PATIENT)
        task = asyncio.create_task(coordinator.run())
        try:
            found = Secured(running, coordinator, [])
            await found.reported()
            for other in (connection, *(site.agent.connection for site in running.sites.values())):
                assert other is not None
                found.watch(other)
            yield found
        finally:
            await cancel_and_wait(task)
            await connection.close()
