"""Closes the connections of who sends more than allowed: by the broker's own counts, without a look at any message."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.errors import InputError
from nearcast.nats.boundary import Receiver
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.identity.tokens import read_token, tagged_limits, tagged_role
from nearcast.nats.tasks import TaskSet, cancel_and_wait
from nearcast.site.servers import fetch_monitoring
from nearcast.site.usage_limits import CloseConnection, Sender, Sent, UsageLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from nearcast.domain.site import SiteSpec
    from nearcast.nats.identity.credentials import Credentials
    from nearcast.site.usage_limits import Tenant

__all__ = ["LimitEnforcer"]

_log = logging.getLogger(__name__)
_PERIOD = 0.25
_LARGEST_SHARE = 0.05  # of this process's time, for asking the broker: it has a line for each connection
_TENANTS_EVERY = 5.0
_START_LIMIT = 30.0
_TRUSTED = ("site", "store", "worker", "coordinator", "cluster")
_CONNECTIONS = "connz?limit=65536"


class _Server(msgspec.Struct):
    id: str


class _Client(msgspec.Struct):
    cid: int = msgspec.field(name="id", default=0)
    account: str = msgspec.field(name="acc", default="")
    jwt: str = ""
    mqtt_client: str = msgspec.field(name="client_id", default="")


class _ReceivedCounts(msgspec.Struct):
    msgs: int = 0
    bytes: int = 0


class _Event(msgspec.Struct):
    """What a broker tells of a connection that opened or ended."""

    server: _Server
    client: _Client
    received: _ReceivedCounts = msgspec.field(default_factory=_ReceivedCounts)


class LimitEnforcer:
    """Of one site's broker. credentials: of the site's user of the brokers' own account.

    tenants: gives the tenants by account, with their limits. tell: called with tenant, user, reason and for how
    many seconds, before a connection is closed; returns when the broker has it.
    """

    def __init__(
        self,
        site: SiteSpec,
        credentials: Credentials,
        tenants: Callable[[], Mapping[str, Tenant]],
        tell: Callable[[str, str, str, float], Awaitable[None]],
    ) -> None:
        self._site, self._credentials, self._read_tenants, self._tell = site, credentials, tenants, tell
        self.limits = UsageLimits()
        self.tenants: Mapping[str, Tenant] = {}
        self._connection: Connection | None = None
        self._server = ""
        self._tasks = TaskSet()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Learn who is connected, and watch from now on."""
        self._connection = connection = await open_connection(
            [self._site.url],
            name=f"{self._site.name}/limits",
            timeout=_START_LIMIT,
            credentials=self._credentials,
            on_reconnect=self._look_around,
        )
        for subject, take in (("CONNECT", self._connected), ("DISCONNECT", self._disconnected)):
            receiver = Receiver("connection event", _Event, "json", take)
            await connection.subscribe_raw(f"$SYS.ACCOUNT.*.{subject}", receiver)
        await connection.flush()
        self._refresh_tenants()
        await self._look_around()
        self._watch = asyncio.create_task(self._run(), name=f"{self._site.name}: limits")

    async def stop(self) -> None:
        """Watch no more."""
        await cancel_and_wait(self._watch)
        await self._tasks.cancel()
        if self._connection is not None:
            await self._connection.close()

    def closed(self, tenant: str) -> dict[str, int]:
        """How many connections of each user of a tenant were closed for a limit."""
        accounts = {account for account, one in self.tenants.items() if one.name == tenant}
        return {user: count for (account, user), count in self.limits.closed.items() if account in accounts}

    async def _run(self) -> None:
        pause, refreshed = _PERIOD, time.monotonic()
        while True:
            await asyncio.sleep(pause)
            asked = time.monotonic()
            try:
                if asked - refreshed > _TENANTS_EVERY:
                    refreshed = asked
                    self._refresh_tenants()
                if self.limits.needed:
                    await self._measure(asked)
            except OSError as error:  # it is being restarted
                _log.debug("%s: no connections: %s", self._site.name, error)
            except Exception:
                _log.exception("%s: limits are not enforced", self._site.name)
            pause = max(_PERIOD, (time.monotonic() - asked) / _LARGEST_SHARE)

    async def _measure(self, asked: float) -> None:
        found = (await fetch_monitoring(self._site, _CONNECTIONS))["connections"]
        sent = {one["cid"]: Sent(one["in_msgs"], one["in_bytes"]) for one in found}
        self._close(self.limits.measured(sent, asked, time.monotonic()))

    def _refresh_tenants(self) -> None:
        self.tenants = self._read_tenants()
        self.limits.set_tenants(self.tenants)

    async def _look_around(self) -> None:
        """Who is connected already; what they sent before does not count."""
        assert self._connection is not None
        self._server = self._connection.server_id
        self.limits.forget_connections()
        try:
            found = await fetch_monitoring(self._site, f"{_CONNECTIONS}&auth=1")
        except OSError as error:
            _log.warning("%s: limits of those who are connected are not known: %s", self._site.name, error)
            return
        for one in found["connections"]:
            sender = _sender(one.get("account", ""), one.get("jwt", ""), one.get("mqtt_client", ""))
            if sender is not None:
                sent = Sent(one["in_msgs"], one["in_bytes"])
                self._close(self.limits.connected(one["cid"], sender, time.monotonic(), sent))

    def _connected(self, subject: str, reply: str, event: _Event) -> None:
        if event.server.id != self._server:
            return
        sender = _sender(event.client.account, event.client.jwt, event.client.mqtt_client)
        if sender is not None:
            self._close(self.limits.connected(event.client.cid, sender, time.monotonic()))

    def _disconnected(self, subject: str, reply: str, event: _Event) -> None:
        if event.server.id == self._server:
            self.limits.disconnected(event.client.cid, Sent(event.received.msgs, event.received.bytes))

    def _close(self, found: Iterable[CloseConnection]) -> None:
        for close in found:
            if not close.reason:  # it was told before
                self._kick(close.cid)
                continue
            _log.warning("%s: a connection of %s is closed: %s", self._site.name, close.sender.user, close.reason)
            self._tasks.spawn(self._tell_and_kick(close), name=f"{self._site.name}: close {close.cid}")

    async def _tell_and_kick(self, close: CloseConnection) -> None:
        tenant = self.tenants.get(close.sender.account)
        try:
            if tenant is not None:
                await self._tell(
                    tenant.name, close.sender.user, f"site {self._site.name}: {close.reason}", close.seconds
                )
        except (NatsError, TimeoutError, OSError) as error:
            _log.debug("%s: notice not sent: %s", close.sender.user, error)
        finally:
            self._kick(close.cid)

    def _kick(self, cid: int) -> None:
        assert self._connection is not None
        body = msgspec.json.encode({"cid": cid})
        # A broker does nothing about a request without a reply.
        self._connection.send(f"$SYS.REQ.SERVER.{self._server}.KICK", b"", body, self._connection.new_inbox())


def _sender(account: str, token: str, mqtt_client: str) -> Sender | None:
    """Who a connection is by its token, which the broker has checked; none for the brokers' own."""
    try:
        claims = read_token(token)
    except InputError:
        return None
    tags = claims.nats.get("tags", [])
    return Sender(account, claims.name, tagged_limits(tags), tagged_role(tags) in _TRUSTED, mqtt_client)
