"""A secured deployment: credentials, TLS, and brokers that refuse what a role has no use for."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import ssl
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tests.system.worker_counts import stats_of_workers
from typer.testing import CliRunner

import nearcast
from nearcast import ConnectionLostError, QuotaError
from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.certificates import make_authority, make_certificate
from nearcast.auth.push import push_accounts
from nearcast.auth.role_table import EXAMPLES, example_grants, is_allowed, role_users
from nearcast.auth.roles import Grants
from nearcast.cli.app import COMMANDS
from nearcast.cli.lazy_group import lazy_app
from nearcast.client.store_finder import HistoryError
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.identity.credentials import credentials_file, read_credentials
from nearcast.nats.identity.tokens import AccessLimits
from nearcast.nats.stamp import header_block
from nearcast.nats.tasks import retry
from nearcast.protocol.control import Rehome, StartTopic
from nearcast.protocol.registration import RegisterSite, SiteInfo
from nearcast.testing import RunningSites, sites, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROCESSOR = """
from nearcast import processor

@processor("gps.*", spool=5)
def echo(message, spool):
    yield {"n": message.data["n"]}
"""
GPS = TopicSpec("gps.*", ("edge",), ("edge", "cloud"), quorum=2)
OWN = Grants(("gps.car7",), ("gps.car7",))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def city(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningSites]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "secured_processor.py").write_text(PROCESSOR)
    async with sites(
        GPS, processors=["secured_processor"], search_path=[str(folder)], folder=folder, secured=True, mqtt=True
    ) as running:
        running.auth.add_user("device", "car7", grants=example_grants("device"))
        running.auth.add_user("device", "car8", grants=Grants(("gps.car8",), ("gps.car8",)))
        yield running


@contextlib.asynccontextmanager
async def connected(city: RunningSites, user: str, site: str = "edge") -> AsyncIterator[Connection]:
    file = city.auth.credentials_file(user, "main")
    connection = await open_connection([city.url(site)], name=user, credentials=read_credentials(file))
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_device_publishes_hears_and_reads_what_is_its_own(city: RunningSites) -> None:
    file = city.auth.credentials_file("car7", "main")
    async with nearcast.connect(city.url("edge"), credentials=file) as client:
        assert client.name == "car7"
        async with client.subscribe("gps.car7") as warnings:
            receipt = await client.publish("gps.car7", {"n": 1})
            assert sorted(receipt.stores) == ["cloud", "edge"]
            assert (await anext(warnings)).data == {"n": 1}
        past = [message.data async for message in client.history("gps.car7")]
        assert past == [{"n": 1}]


async def test_the_past_of_others_is_refused_at_once(city: RunningSites) -> None:
    async with nearcast.connect(city.url("edge"), credentials=city.auth.credentials_file("car8", "main")) as client:
        for topic in ("gps.car7", "gps.*", ">"):
            with pytest.raises((NearcastError, HistoryError), match="car8 may not"):
                _ = [message async for message in client.history(topic)]


async def test_brokers_agree_with_the_table_of_roles(city: RunningSites) -> None:
    for role, user, site in role_users():
        if role != "store":  # a leaf node: it has a link of its own
            with contextlib.suppress(InputError):
                city.auth.add_user(role, user, grants=example_grants(role), site=site)
            async with connected(city, user) as connection:
                for subject in EXAMPLES:
                    connection.send(subject, b"", b"", "")
                    subscription = await connection.subscribe_raw(subject, lambda *parts: None)
                    await connection.unsubscribe_raw(subscription)
                expected = {
                    f"{'publish' if action == 'publish' else 'subscription'} {subject}".lower()
                    for subject in EXAMPLES
                    for action in ("publish", "subscribe")
                    if not is_allowed(role, action, subject)
                }
                with contextlib.suppress(AssertionError):
                    await until(lambda: set(connection.refusals.counts) == expected)  # noqa: B023
                assert set(connection.refusals.counts) == expected, role


async def test_a_device_cannot_command_forge_register_or_listen(city: RunningSites) -> None:
    """Attacks 3 and 5 of the security issue; without credentials every one of them worked."""
    rehome = msgspec.json.encode(Rehome(1 << 62, "evil", "nats://10.6.6.6:4222"))
    fake = msgspec.json.encode(RegisterSite(SiteInfo("evil", "nats://10.6.6.6:4222", "10.6.6.6", 4222)))
    start = msgspec.json.encode(StartTopic(1 << 62, 9, GPS, "../../evil"))
    attacks = {
        subjects.client_command("car8"): rehome,
        "_INBOX.car8.abc.1": b'{"stream":"gps","seq":1,"domain":"edge"}',
        subjects.coordinator("topic", "rm"): b'{"name":"gps.*"}',
        subjects.site_registration("evil"): fake,
        subjects.site_command("edge", "start"): start,
        subjects.publications("gps.car8"): b"{}",
        subjects.notifications("gps.car7"): b"{}",
        subjects.client_reports("edge", "car8"): b"",
        "$JS.edge.API.STREAM.DELETE.gps_2e_2a": b"",
        "$SYS.REQ.SERVER.PING": b"",
    }
    listens = (">", "*.>", "_INBOX.>", "_INBOX.car8.>", "ctl.>", "mon.>", "pub.>", "ntf.>", "$SYS.>", "$JS.>")
    async with connected(city, "car7") as connection:
        for subject, payload in attacks.items():
            connection.send(subject, b"", payload, "")
        for subject in listens:
            await connection.subscribe_raw(subject, lambda *parts: None)
        expected = {f"publish {s}".lower() for s in attacks} | {f"subscription {s}".lower() for s in listens}
        with contextlib.suppress(AssertionError):
            await until(lambda: set(connection.refusals.counts) == expected)
        assert set(connection.refusals.counts) == expected


async def test_nobody_publishes_under_the_id_of_another_where_the_topic_names_its_publisher(city: RunningSites) -> None:
    """The broker judges the subject, worker and subscribers whether the id says the same."""
    own = Grants(("gps.@bus1", "chat.@bus1"), ("gps.*", "chat.*"))
    file = city.auth.add_user("device", "bus1", grants=own)
    forged = header_block(b"car8~abcde:edge:%d:1" % (time.time_ns() // 1000))
    with pytest.raises(InputError, match=r"another publisher's; allowed: a level @bus2"):
        city.auth.add_user("device", "bus2", grants=Grants(("gps.@bus1",)))
    async with nearcast.connect(city.url("edge"), credentials=file) as client, connected(city, "bus1") as raw:
        async with (
            client.subscribe("gps.*") as warnings,
            client.subscribe("chat.*") as chat,
            client.dead_letters("gps.*") as letters,
        ):
            raw.send(subjects.publications("gps.@car8"), forged, b'{"n":0}')
            await until(lambda: set(raw.refusals.counts) == {"publish pub.gps.@car8"})
            raw.send(subjects.publications("gps.@bus1"), forged, b'{"n":1}')
            raw.send(subjects.publications("chat.@bus1"), forged, b'{"n":1}')
            await raw.flush()
            letter = await asyncio.wait_for(anext(letters), 60)
            assert (letter.topic, letter.reason) == ("gps.@bus1", "its topic is of publisher bus1")
            with pytest.raises(nearcast.RefusedError, match=r"topic gps\.@car8: bus1 may not publish it"):
                await client.publish("gps.@car8", {"n": 2}, quorum=1, timeout=3600)
            await client.publish("gps.@bus1", {"n": 2})
            await client.publish("chat.@bus1", {"n": 2})
            for subscription in (warnings, chat):
                message = await asyncio.wait_for(anext(subscription), 60)
                assert (message.publisher, message.data) == ("bus1", {"n": 2})
            assert chat.forged == 1
        assert [message.data async for message in client.history("gps.@bus1")] == [{"n": 2}]
    stats = await stats_of_workers(city.sites["edge"])
    assert sum(worker.forged for worker in stats) == 1


async def test_who_has_no_credentials_is_told_to_get_some(city: RunningSites, tmp_path: Path) -> None:
    with pytest.raises(ConnectionLostError, match=r"NEARCAST_CREDS|certificate is not accepted"):
        await open_connection([city.url("edge")], name="nobody")
    other = AuthFolder.create(tmp_path / "other")
    stranger = read_credentials(other.add_user("service", "stranger"))
    ca = city.auth.ca_file.read_text()
    file = tmp_path / "stranger.creds"
    file.write_text(credentials_file(stranger.token, stranger.seed, ca))
    with pytest.raises(ConnectionLostError, match="refuses the credentials of stranger"):
        await open_connection([city.url("edge")], name="x", credentials=read_credentials(file))


async def test_a_wrong_authority_is_not_believed(city: RunningSites, tmp_path: Path) -> None:
    make_authority(tmp_path)
    own = read_credentials(city.auth.credentials_file("car7", "main"))
    file = tmp_path / "car7.creds"
    file.write_text(credentials_file(own.token, own.seed, (tmp_path / "ca.pem").read_text()))
    with pytest.raises(ConnectionLostError, match="certificate is not accepted"):
        await open_connection([city.url("edge")], name="x", credentials=read_credentials(file))


async def test_expired_credentials_say_when_they_did(city: RunningSites) -> None:
    file = city.auth.add_user("device", "old", grants=OWN, expires=int(time.time()) - 10)
    with pytest.raises(InputError, match=r"the credentials of old .* expired on "):
        await open_connection([city.url("edge")], name="x", credentials=read_credentials(file))


async def test_a_live_connection_ends_when_its_token_expires(city: RunningSites) -> None:
    city.auth.add_user("device", "brief", grants=OWN, expires=int(time.time()) + 8)
    async with connected(city, "brief") as connection:
        assert connection.is_connected
        await until(lambda: not connection.is_connected, 60)


async def test_a_connection_closes_while_a_reconnection_waits_for_the_end_of_its_transport(city: RunningSites) -> None:
    async with connected(city, "car7") as connection:
        connection._reconnection_task = asyncio.create_task(connection._transport.wait_closed())
        await asyncio.sleep(0)  # it waits
        await connection.close()
        assert connection.is_closed


async def test_live_connections_of_a_revoked_user_close_at_every_site(city: RunningSites) -> None:
    city.auth.add_user("device", "thief", grants=OWN)
    async with connected(city, "thief", "edge") as near, connected(city, "thief", "cloud") as far:
        async with connected(city, "car7") as other:
            file = city.auth.credentials_file("thief", "main")
            before = read_credentials(file)
            city.auth.revoke("thief")
            await push_accounts(city.auth, city.url("edge"))
            await until(lambda: not near.is_connected and not far.is_connected, 60)
            assert other.is_connected
    kept = city.folder / "thief.creds"
    kept.write_text(credentials_file(before.token, before.seed, before.ca))
    with pytest.raises(ConnectionLostError, match="refuses the credentials of thief"):
        await open_connection([city.url("cloud")], name="x", credentials=read_credentials(kept))


async def test_signing_keys_are_rotated_while_messages_flow(city: RunningSites) -> None:
    file = city.auth.credentials_file("car7", "main")
    async with nearcast.connect(city.url("edge"), credentials=file) as client:
        old = read_credentials(file).token
        city.auth.rotate()
        await push_accounts(city.auth, city.url("edge"))
        await client.publish("gps.car7", {"n": 2})
        assert read_credentials(file).token != old
        async with connected(city, "car7"):  # a connection with the new token
            pass
        city.auth.finish_rotation()  # the broker ends all connections with tokens of the old key, the sites' own, too
        await push_accounts(city.auth, city.url("edge"))
        await asyncio.sleep(1)
        async with nearcast.connect(city.url("edge"), credentials=file) as later:
            for n, publisher in enumerate((client, later)):
                await retry(partial(publisher.publish, "gps.car7", {"n": 3 + n}), within=60, on=(NearcastError,))


async def test_an_mqtt_device_has_its_token_as_password(city: RunningSites) -> None:
    from paho.mqtt import client as mqtt

    file = city.auth.add_user("device", "bike1", grants=Grants(("gps.bike1",), ("gps.bike1",)), mqtt=True)
    codes: dict[str, object] = {}
    device = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="bike1")
    device.username_pw_set("bike1", read_credentials(file).token)
    device.tls_set(str(city.auth.ca_file))
    device.on_connect = lambda c, u, f, code, p: codes.__setitem__("connect", code)
    device.on_subscribe = lambda c, u, mid, granted, p: codes.__setitem__(f"subscribe {mid}", granted[0])
    spec = city.sites["edge"].spec
    try:
        await asyncio.to_thread(device.connect, spec.host, spec.mqtt_port)
        device.loop_start()
        await until(lambda: "connect" in codes)
        assert not codes["connect"].is_failure  # type: ignore[attr-defined]
        numbers = [device.subscribe(topic)[1] for topic in ("ntf/gps/bike1", "#", "ntf/gps/car7")]
        await until(lambda: len(codes) == 4)
        assert [codes[f"subscribe {n}"].is_failure for n in numbers] == [False, True, True]  # type: ignore[attr-defined]
    finally:
        device.disconnect()
        await asyncio.to_thread(device.loop_stop)


async def test_new_certificates_and_accounts_are_taken_without_a_restart(city: RunningSites) -> None:
    site = city.sites["edge"]
    pids = site.broker.pid, site.store.pid
    before = await _serial(city.url("edge"), city)
    async with connected(city, "car7") as connection:
        make_certificate(city.auth.ca_file.parent, "edge", ["127.0.0.1"])

        async def renewed() -> bool:
            return await _serial(city.url("edge"), city) != before

        await until(renewed, 60)
        assert connection.is_connected
    assert (site.broker.pid, site.store.pid) == pids


async def _serial(url: str, city: RunningSites) -> int:
    host, port = url.removeprefix("nats://").split(":")
    context = ssl.create_default_context(cafile=str(city.auth.ca_file))
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.readline()
    await writer.start_tls(context, server_hostname=host)
    serial = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    writer.transport.abort()
    return int(serial, 16)


async def test_changes_are_audited_with_their_user(city: RunningSites) -> None:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.leadership import Coordinator
    from nearcast.nats.audit import AuditLog
    from nearcast.nats.coordinator_rpc import call_coordinator

    async with connected(city, "coordinator", "cloud") as connection, connected(city, "admin") as admin:
        coordinator = Coordinator(connection, "cloud", CoordinatorSettings(period=0.5))
        running = asyncio.create_task(coordinator.run())
        try:
            await asyncio.wait_for(coordinator.leading.wait(), 60)
            await call_coordinator(admin, "topic", "add", {"spec": {"name": "news"}}, object)
            with pytest.raises(InputError):
                await call_coordinator(admin, "topic", "add", {"spec": {"name": "news"}}, object)
            with pytest.raises(InputError):
                await call_coordinator(admin, "client", "move", {"name": "nobody", "to": ["edge"]}, object)
            await until(lambda: coordinator.leader is not None and len(coordinator.leader.registry.sites) == 2, 60)
            await call_coordinator(admin, "plan", "apply", {}, object, timeout=60)
            # An operator may write to the bucket: what it wrote must not keep others from reading the rest.
            await AuditLog(admin, "cloud")._bucket.put("0", b'{"time":1e300,"who":"a","action":"","what":""}')
            entries = await call_coordinator(admin, "audit", "ls", {}, list[dict])
            found = [(one["who"], one["action"], one["what"], one["outcome"].split(":")[0]) for one in entries]
            assert found[0][:2] == ("", "unreadable entry")
            assert found[1:] == [
                ("admin", "topic add", "news", "done"),
                ("admin", "topic add", "news", "refused"),
                ("admin", "client move", "nobody to edge", "refused"),
                ("admin", "plan apply", "", "done"),
            ]
            assert not connection.refusals.counts
            assert not [text for text in admin.refusals.counts if text.startswith("publish api")]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_users_that_are_made_and_revoked_are_audited(city: RunningSites, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(lazy_app(COMMANDS), [*words, "--folder", str(city.auth.path)])
        assert result.exit_code == 0, result.output
        return result.output

    made = ("auth", "add", "device", "noted", "--publish", "gps.noted", "--out", str(tmp_path / "noted.creds"))
    await asyncio.to_thread(run, *made)
    async with connected(city, "noted") as connection:
        await asyncio.to_thread(run, "auth", "revoke", "noted", "--url", city.url("edge"))
        await until(lambda: not connection.is_connected, 60)
    entries = json.loads(await asyncio.to_thread(run, "audit", "ls", "--json"))
    assert [(one["action"], one["what"]) for one in entries] == [
        ("user made", "device noted of main"),
        ("user revoked", "noted of main"),
    ]
    assert {one["who"] for one in entries} == {getpass.getuser()}


async def test_a_user_that_floods_is_told_closed_and_counted_and_nobody_else(city: RunningSites) -> None:
    limits = AccessLimits(messages_per_second=50, bytes_per_second=50_000)
    file = city.auth.add_user("device", "flood", grants=Grants(("noise.flood",)), limits=limits)
    enforcer = city.sites["edge"].limits
    async with nearcast.connect(city.url("edge"), credentials=file) as client, connected(city, "car7") as other:

        async def publish_many() -> None:
            for _ in range(1000):
                await client.publish("noise.flood", {})

        with pytest.raises(QuotaError, match="flood may publish 50 messages/s"):
            await publish_many()
        assert "flood" not in enforcer.closed("main"), "who keeps to its limit is not closed"
        async with connected(city, "flood") as raw:  # not the client library's
            for _ in range(20_000):
                raw.send(subjects.publications("noise.flood"), b"", b"0123456789")
            await until(lambda: enforcer.closed("main").get("flood", 0) >= 2, 60)
            refused: list[str] = []

            async def told() -> bool:
                try:
                    await client.publish("noise.flood", {})
                except QuotaError as error:
                    refused.append(str(error))
                return any(text.startswith("site edge: flood sent more than 50 messages/s") for text in refused)

            await until(told, 60)
            await until(lambda: raw.stats["reconnects"] > 0 or not raw.is_connected, 60)
        await other.flush(60)
        assert "car7" not in enforcer.closed("main")


async def test_a_user_has_no_more_connections_than_it_was_given(city: RunningSites) -> None:
    city.auth.add_user("device", "single", grants=OWN, limits=AccessLimits(connections=1))
    async with connected(city, "single") as first:
        async with connected(city, "single") as second:
            await until(lambda: second.stats["reconnects"] > 0 or not second.is_connected, 60)
        await first.flush(60)


async def test_tenants_do_not_hear_each_other_and_have_limits(city: RunningSites) -> None:
    city.auth.add_tenant("rival", AccessLimits(connections=1))
    for name in ("spy", "late"):
        city.auth.add_user("service", name, "rival")
    await push_accounts(city.auth, city.url("edge"))
    spy = read_credentials(city.auth.credentials_file("spy", "rival"))
    heard: list[str] = []
    listener = await open_connection([city.url("edge")], name="spy", credentials=spy)
    try:
        for subject in ("pub.>", "ntf.>", "tip.>"):
            await listener.subscribe_raw(subject, lambda subject, *rest: heard.append(subject))
        await listener.flush()
        assert not listener.refusals.counts  # it may listen, in its own account
        late = read_credentials(city.auth.credentials_file("late", "rival"))
        with pytest.raises(ConnectionLostError, match=r"the broker refuses more: .*maximum account active connections"):
            await open_connection([city.url("edge")], name="late", credentials=late)
        async with nearcast.connect(city.url("edge"), credentials=city.auth.credentials_file("car7", "main")) as client:
            async with client.subscribe("gps.car7") as warnings:
                await client.publish("gps.car7", {"n": 3})
                await anext(warnings)
        await listener.flush()
        assert heard == []
    finally:
        await listener.close()


async def test_parts_of_a_site_may_do_all_that_they_try(city: RunningSites) -> None:
    """Their own brokers and stores refused them nothing in all tests before this one."""
    for file in city.folder.glob("run/*/*.log"):
        lines = [line for line in file.read_text(errors="replace").splitlines() if "Violation" in line]
        parts = [line for line in lines if "/agent" in line or "/worker" in line or "Leafnode" in line]
        assert not parts, parts[:3]
