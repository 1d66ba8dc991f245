"""The channel subscriptions of a site's clients: equal ones are shared, and the data cluster learns of each once.

The data cluster sees one row for each set of values, however many clients of a site subscribed to it. A client that
does not renew has left; not one that this agent could not hear. The site itself holds a lease; when it expires, the
data cluster drops the site's rows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from nearcast.domain.channel import ChannelSpec, check_values, subscription_key
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.rpc import Endpoint
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.services import (
    ChannelAnswer,
    ChannelRequest,
    ConfirmAnswer,
    ConfirmRequest,
    DatasetRequest,
    RenewAnswer,
    RenewRequest,
)
from nearcast.site.agent.renewals import Renewals, UninterruptedTime

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["ChannelSubscriptions"]

_log = logging.getLogger(__name__)
_CHECK_PERIOD = 1.0
_LEASE_PERIOD = 5.0
# While nobody holds a row, no results are computed: a client that was away for less must not miss any.
_EXPIRE_AFTER = 30.0
_SPEC_CACHE_SECONDS = 1.0
_CONFIRM_POLL, _CONFIRM_WAIT = 0.05, 4.0


class ChannelSubscriptions:
    """Of the clients of one site. store: the site that keeps the catalog of channels."""

    def __init__(self, connection: Connection, site: str, store: str) -> None:
        self._connection, self._site, self._store = connection, site, store
        self._hearing = UninterruptedTime()
        self._catalog = Catalog(connection, store)
        self._renewals = Renewals()
        self._specs: dict[str, tuple[float, ChannelSpec]] = {}
        self._revisions: dict[str, int] = {}  # of the rows that this agent has written
        self._values: dict[str, dict[str, Any]] = {}  # of the same rows
        self._unwanted: set[str] = set()  # rows to be removed; the catalog may be away for a while
        self._confirmed = 0
        self._polling: asyncio.Task[None] | None = None  # for all who wait
        self._clock = asyncio.get_running_loop().time
        self._task: asyncio.Task[None] | None = None
        self.endpoints = [
            self._of_client("subscribe", ChannelRequest, self._subscribe),
            Endpoint("channel-confirm", subjects.channels_service(site, "confirm"), ConfirmRequest, self._confirm),
            self._of_client("renew", RenewRequest, self._renew),
            self._of_client("leave", RenewRequest, self._leave),
            Endpoint("dataset", subjects.channels_service(site, "dataset"), DatasetRequest, self._dataset),
        ]

    async def start(self) -> None:
        """Renew the lease and expire clients from now on. The catalog need not be reachable yet."""
        self._task = asyncio.create_task(self._run(), name=f"{self._site}: channel subscriptions")

    async def stop(self) -> None:
        """Stop; the rows stay, for the next agent to adopt or the lease to expire."""
        await cancel_and_wait(self._task, self._polling)

    def _of_client(self, verb: str, request: Any, handler: Any) -> Endpoint:
        subject = subjects.channels_service(self._site, verb)
        return Endpoint(f"channel-{verb}", subject, request, handler, scope=lambda asked: str(asked.client))

    async def _subscribe(self, request: ChannelRequest) -> ChannelAnswer:
        spec = await self._spec(request.channel)
        values = check_values(spec, request.params)
        key = subscription_key(values)
        name = f"{spec.name}.{key}"
        first = name not in self._renewals
        if first and (reason := await self._catalog.fault(spec.name, key)):
            raise InputError(f"channel {spec.name}: the subscription with these values is switched off: {reason}")
        self._renewals.renew(name, request.client, self._clock())
        self._unwanted.discard(name)
        if first:
            self._values[name] = values
            try:
                self._revisions[name] = await self._catalog.subscribe(spec.name, key, self._site, values)
            except BaseException:
                self._renewals.forget(name)
                raise
        return ChannelAnswer(key=key, store=self._store, revision=self._revisions.get(name, 0))

    async def _confirm(self, request: ConfirmRequest) -> ConfirmAnswer:
        """Whether the data cluster has a subscription in its tables; waits a while for that."""
        deadline = self._clock() + _CONFIRM_WAIT
        while self._confirmed < request.revision and (left := deadline - self._clock()) > 0:
            if self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll(), name=f"{self._site}: confirmed subscriptions")
            polling = self._polling
            await asyncio.wait([polling], timeout=left)
            if polling.done() and not polling.cancelled():
                polling.result()
        return ConfirmAnswer(self._confirmed >= request.revision)

    async def _poll(self) -> None:
        self._confirmed = max(self._confirmed, await self._catalog.confirmed())
        await asyncio.sleep(_CONFIRM_POLL)

    async def _renew(self, request: RenewRequest) -> RenewAnswer:
        now, unknown = self._clock(), []
        for name in request.names:
            if name in self._renewals:
                self._renewals.renew(name, request.client, now)
            else:
                unknown.append(name)
        return RenewAnswer(unknown=unknown)

    async def _leave(self, request: RenewRequest) -> RenewAnswer:
        for name in request.names:
            if self._renewals.leave(name, request.client):
                await self._drop(name)
        return RenewAnswer()

    async def _dataset(self, request: DatasetRequest) -> ChannelAnswer:
        name = request.dataset
        spec = await self._catalog.dataset(name)
        if spec is None:
            raise InputError(f"there is no dataset {name!r}")
        if spec.source != subjects.feed(name):
            how = "loaded as a whole" if spec.static else f"filled from {spec.source}"
            raise InputError(f"dataset {name!r} is {how} and takes no records")
        return ChannelAnswer(store=self._store)

    async def _spec(self, name: str) -> ChannelSpec:
        known = self._specs.get(name)
        if known is not None and self._clock() - known[0] < _SPEC_CACHE_SECONDS:
            return known[1]
        spec = await self._catalog.channel(name)
        if spec is None:
            have = ", ".join(await self._catalog.channels()) or "none"
            raise InputError(f"there is no channel {name!r}; there are: {have}")
        self._specs[name] = (self._clock(), spec)
        return spec

    async def _run(self) -> None:
        adopted, leased = False, -_LEASE_PERIOD
        while True:
            try:
                if not adopted:
                    await self._adopt()
                    adopted = True
                if self._renewals and self._clock() - leased >= _LEASE_PERIOD:
                    await self._catalog.renew(self._site)
                    leased = self._clock()
                await self._expire()
            except (NearcastError, NatsError, TimeoutError) as error:
                _log.debug("channels at %s: %s", self._site, error)
            except Exception:
                _log.exception("channels at %s: subscriptions are not renewed", self._site)
            await asyncio.sleep(_CHECK_PERIOD)

    async def _adopt(self) -> None:
        """Take over the rows of an earlier agent; their clients have some seconds to renew."""
        for name in await self._catalog.held_by(self._site):
            if name not in self._renewals:
                self._renewals.adopt(name, self._clock())

    async def _expire(self) -> None:
        now, connection = self._clock(), self._connection
        if now - self._hearing.since(connection.link if connection.is_connected else None, now) >= _EXPIRE_AFTER:
            self._unwanted.update(self._renewals.expire(now - _EXPIRE_AFTER))
        for name in list(self._unwanted):
            if name in self._unwanted:  # nobody came back meanwhile
                await self._drop(name)

    async def _drop(self, name: str) -> None:
        """Nobody has a subscription any more."""
        self._unwanted.add(name)
        self._revisions.pop(name, None)
        channel, _, key = name.partition(".")
        await self._catalog.unsubscribe(channel, key, self._site)
        self._unwanted.discard(name)
        if name not in self._renewals:
            self._values.pop(name, None)
        elif (values := self._values.get(name)) is not None:
            # Somebody came back meanwhile. The removal may have been tried again, and be the later of the two.
            self._revisions[name] = await self._catalog.subscribe(channel, key, self._site, values)
