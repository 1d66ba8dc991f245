"""Two tenants on the same brokers and stores: each with topics, workers and a past of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.system.control import QUICK

import nearcast
from nearcast.auth.push import push_accounts
from nearcast.coordinator.leadership import Coordinator
from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.deployment import TenantSpec
from nearcast.domain.topic import TopicSpec
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.nats.identity.credentials import read_credentials
from nearcast.nats.identity.tokens import AccessLimits
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import RunningSites, sites, until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("tenants")]  # one start of the sites
PROCESSOR = """
from nearcast import processor

@processor("gps.*", spool=5)
def echo(message, spool):
    yield {{"by": "{tenant}", "n": message.data["n"], "seen": len(spool)}}
"""
GPS = TopicSpec("gps.*", ("edge",), ("edge", "cloud"), quorum=2)
TENANTS = ("main", "rival")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def city(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningSites]:
    folder = tmp_path_factory.mktemp("tenants")
    for tenant in TENANTS:
        (folder / f"{tenant}_processor.py").write_text(PROCESSOR.format(tenant=tenant))
    async with sites(
        GPS,
        processors=["main_processor"],
        search_path=[str(folder)],
        folder=folder,
        secured=True,
        report_seconds=0.5,
        tenants=[TenantSpec("rival", (GPS, TopicSpec("secret", (), ("cloud",), quorum=1)), ("rival_processor",))],
    ) as running:
        for tenant in TENANTS:
            running.auth.add_user("service", "app", tenant)
        yield running


def app(city: RunningSites, tenant: str) -> nearcast.Client:
    return nearcast.connect(city.url("edge"), credentials=city.auth.credentials_file("app", tenant))


async def test_one_topic_name_is_two_topics_live_and_in_the_past(city: RunningSites) -> None:
    async with app(city, "main") as mine, app(city, "rival") as theirs:
        async with mine.subscribe(">") as heard, theirs.subscribe(">") as heard_there:
            for n, client in ((1, mine), (2, theirs), (3, mine)):
                receipt = await client.publish("gps.car7", {"n": n})
                assert sorted(receipt.stores) == ["cloud", "edge"]
            await theirs.publish("secret", {"n": 4})
            got = [(await asyncio.wait_for(anext(heard), 60)).data for _ in range(2)]
            got_there = [(await asyncio.wait_for(anext(heard_there), 60)).data for _ in range(2)]
            assert [(one["by"], one["n"], one["seen"]) for one in got] == [("main", 1, 0), ("main", 3, 1)]
            assert sorted(got_there, key=lambda one: one["n"]) == [{"by": "rival", "n": 2, "seen": 0}, {"n": 4}]
            assert heard.pending == heard_there.pending == 0
        assert [message.data["n"] async for message in mine.history("gps.car7")] == [1, 3]
        assert [message.data["n"] async for message in theirs.history("gps.car7")] == [2]
        with pytest.raises(nearcast.NearcastError, match="secret"):
            _ = [message async for message in mine.history("secret")]


async def test_a_flood_of_one_tenant_is_told_by_its_own_agent(city: RunningSites) -> None:
    enforcer = city.sites["edge"].limits
    limits = AccessLimits(messages_per_second=50)
    city.auth.add_user("service", "flood", "rival", limits=limits)
    raw = await _open(city, "flood", "rival")
    notices: list[str] = []
    try:
        await raw.subscribe_raw(
            "_INBOX.flood.notice", lambda subject, reply, data, headers: notices.append(data.decode())
        )
        await raw.flush()
        for _ in range(20_000):
            raw.send("pub.noise", b"", b"0123456789")
        await until(lambda: bool(notices), 60)
        assert "site edge: flood sent more than 50 messages/s" in notices[0]
        assert set(enforcer.closed("rival")) == {"flood"}
        assert enforcer.closed("main") == {}
    finally:
        await raw.close()


async def test_a_tenant_has_a_rate_that_running_sites_take(city: RunningSites) -> None:
    city.auth.add_user("service", "crowd", "rival")
    city.auth.add_tenant("rival", AccessLimits(messages_per_second=100))
    await push_accounts(city.auth, city.url("edge"))
    enforcer = city.sites["edge"].limits
    await until(lambda: any(one.limits.messages_per_second == 100 for one in enforcer.tenants.values()), 60)
    raw = await _open(city, "crowd", "rival")
    try:
        for _ in range(20_000):
            raw.send("pub.noise", b"", b"0123456789")
        await until(lambda: "crowd" in enforcer.closed("rival"), 60)
        assert enforcer.closed("main") == {}
    finally:
        await raw.close()
        city.auth.add_tenant("rival")
        await push_accounts(city.auth, city.url("edge"))


async def test_a_tenant_stores_no_more_than_it_was_given_and_says_so(city: RunningSites) -> None:
    city.auth.add_tenant("rival", AccessLimits(stored_bytes=400_000))
    await push_accounts(city.auth, city.url("edge"))
    clock = asyncio.get_running_loop().time
    try:
        async with app(city, "main") as mine, app(city, "rival") as theirs:

            async def publish_on() -> None:
                deadline = clock() + 60  # the store learns of it within seconds
                while clock() < deadline:
                    await theirs.publish("secret", {"n": 0, "x": "x" * 100_000}, timeout=10)
                    await asyncio.sleep(0.2)

            with pytest.raises(nearcast.QuorumError, match="refused: secret: resource limits exceeded for account"):
                await publish_on()
            receipt = await mine.publish("gps.car8", {"n": 5})
            assert sorted(receipt.stores) == ["cloud", "edge"]
            city.auth.add_tenant("rival")
            await push_accounts(city.auth, city.url("edge"))

            async def is_stored() -> bool:
                with contextlib.suppress(nearcast.QuorumError):
                    return bool((await theirs.publish("secret", {"n": 0, "x": "x" * 100_000}, timeout=2)).stores)
                return False

            await until(is_stored, 60)
    finally:
        city.auth.add_tenant("rival")
        await push_accounts(city.auth, city.url("edge"))


async def test_datasets_and_channels_of_one_are_not_there_for_the_other(city: RunningSites) -> None:
    admins = {tenant: await _open(city, "admin", tenant) for tenant in TENANTS}
    try:
        catalogs = {tenant: Catalog(admin, "cloud") for tenant, admin in admins.items()}
        for catalog in catalogs.values():
            await catalog.prepare()
        await catalogs["main"].add_dataset(DatasetSpec("reports", "id STRING", "fed.reports"))
        await catalogs["main"].add_channel(ChannelSpec("alerts", "SELECT id FROM reports", new="reports"))
        assert not await catalogs["rival"].datasets()
        assert not await catalogs["rival"].channels()
        async with app(city, "main") as mine, app(city, "rival") as theirs:
            assert (await mine.feed("reports", {"id": "1"})).stores == ("cloud",)
            with pytest.raises(nearcast.NearcastError, match="reports"):
                await theirs.feed("reports", {"id": "2"})
    finally:
        for admin in admins.values():
            await admin.close()


async def test_each_tenant_has_workers_and_a_coordinator_that_sees_its_own(city: RunningSites) -> None:
    site = city.sites["edge"]
    agents = site.agents
    assert set(agents) == set(TENANTS)
    pids = [process.pid for agent in agents.values() for process in agent.workers.processes.values()]
    assert len(pids) == len(set(pids)) == 2
    seen: dict[str, list[str]] = {}
    for tenant in TENANTS:
        connection = await _open(city, "coordinator", tenant)
        coordinator = Coordinator(connection, "cloud", QUICK)
        running = asyncio.create_task(coordinator.run())
        admin = await _open(city, "admin", tenant)
        try:
            await asyncio.wait_for(coordinator.leading.wait(), 60)

            closed = [f"{user} at edge" for user in sorted(site.limits.closed(tenant))]  # if a test before flooded

            async def known(admin: Connection = admin, tenant: str = tenant, closed: list[str] = closed) -> bool:
                with contextlib.suppress(nearcast.CoordinatorError):
                    topics = await call_coordinator(admin, "topic", "ls", {}, list[dict])
                    seen[tenant] = sorted(topic["topic"] for topic in topics)
                    status = await call_coordinator(admin, "coordinator", "status", {}, dict)
                    said = [line.split(":")[0] for line in status["over_limit"]]
                    return bool(status["sites"] == 2 and seen[tenant] and said == closed)
                return False

            await until(known, 60)
        finally:
            await cancel_and_wait(running)
            await admin.close()
            await connection.close()
    assert seen == {"main": ["gps.*"], "rival": ["gps.*", "secret"]}


async def _open(city: RunningSites, user: str, tenant: str) -> Connection:
    credentials = read_credentials(city.auth.credentials_file(user, tenant))
    return await open_connection([city.url("edge")], name=user, credentials=credentials)
