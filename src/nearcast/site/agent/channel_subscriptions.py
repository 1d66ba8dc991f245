"""The site's desk for channels: takes subscriptions, shares equal ones, and tells the data cluster of each once.

The data cluster sees one row for each set of values, however many of a site's clients asked for it. A client that does
not renew has left. The site itself holds a lease; when it is lost, the data cluster drops its rows by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from nearcast.domain.channel import ChannelSpec, check_values, subscription_key
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.rpc import Endpoint, Server
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.services import ChannelAnswer, ChannelRequest, DatasetRequest, RenewAnswer, RenewRequest

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["ChannelSubscriptions"]

_log = logging.getLogger(__name__)
_LOOK_EVERY = 1.0
_LEASE_EVERY = 5.0
_GONE_AFTER = 6.0
_ADOPTED = ""  # stands for the unknown clients of a row that was there when the agent started
_SPEC_SECONDS = 1.0


class ChannelSubscriptions:
    """Answers the clients of one site. store: the site that keeps the registry."""

    def __init__(self, connection: Connection, site: str, store: str) -> None:
        self._site, self._store = site, store
        self._registry = Catalog(connection, store)
        self._heard: dict[str, dict[str, float]] = {}  # "<channel>.<key>" -> client -> when
        self._specs: dict[str, tuple[float, ChannelSpec]] = {}
        self._clock = asyncio.get_running_loop().time
        self._watcher: asyncio.Task[None] | None = None
        verbs: list[tuple[str, Any, Callable[[Any], Awaitable[Any]]]] = [
            ("subscribe", ChannelRequest, self._subscribe),
            ("renew", RenewRequest, self._renew),
            ("leave", RenewRequest, self._leave),
            ("dataset", DatasetRequest, self._dataset),
        ]
        endpoints = [
            Endpoint(verb, subjects.channels_service(site, verb), kind, self._reaching_store(handler))
            for verb, kind, handler in verbs
        ]
        self._server = Server(connection, endpoints, "nearcast-channels")

    async def start(self) -> None:
        """Begin to answer. The registry need not be reachable yet."""
        await self._server.start()
        self._watcher = asyncio.create_task(self._watch(), name=f"channels of {self._site}")

    async def stop(self) -> None:
        """Stop answering; the rows stay, for the next agent to adopt or the lease to end."""
        await self._server.stop()
        await cancel_and_wait(self._watcher)

    def _reaching_store(self, handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """The handler, with an error that names the store when the store does not answer."""

        async def answer(request: Any) -> Any:
            try:
                return await handler(request)
            except (NatsError, TimeoutError) as error:
                raise NearcastError(
                    f"the store of {self._store} does not answer: {str(error) or 'timed out'}"
                ) from error

        return answer

    async def _subscribe(self, request: ChannelRequest) -> ChannelAnswer:
        spec = await self._spec(request.channel)
        values = check_values(spec, request.params)
        key = subscription_key(values)
        clients = self._heard.setdefault(f"{spec.name}.{key}", {})
        first = not clients
        clients[request.client] = self._clock()
        if first:
            try:
                await self._registry.subscribe(spec.name, key, self._site, values)
            except BaseException:
                self._heard.pop(f"{spec.name}.{key}", None)
                raise
        return ChannelAnswer(key=key, store=self._store)

    async def _renew(self, request: RenewRequest) -> RenewAnswer:
        now, unknown = self._clock(), []
        for name in request.names:
            clients = self._heard.get(name)
            if not clients:
                unknown.append(name)
            else:
                clients[request.client] = now
        return RenewAnswer(unknown=unknown)

    async def _leave(self, request: RenewRequest) -> RenewAnswer:
        for name in request.names:
            clients = self._heard.get(name, {})
            clients.pop(request.client, None)
            await self._drop_if_empty(name)
        return RenewAnswer()

    async def _dataset(self, request: DatasetRequest) -> ChannelAnswer:
        name = request.dataset
        spec = await self._registry.dataset(name)
        if spec is None:
            raise InputError(f"there is no dataset {name!r}")
        if spec.source != subjects.feed(name):
            how = "loaded as a whole" if spec.static else f"filled from {spec.source}"
            raise InputError(f"dataset {name!r} is {how} and takes no records")
        return ChannelAnswer(store=self._store)

    async def _spec(self, name: str) -> ChannelSpec:
        known = self._specs.get(name)
        if known is not None and self._clock() - known[0] < _SPEC_SECONDS:
            return known[1]
        spec = await self._registry.channel(name)
        if spec is None:
            have = ", ".join(await self._registry.channels()) or "none"
            raise InputError(f"there is no channel {name!r}; there are: {have}")
        self._specs[name] = (self._clock(), spec)
        return spec

    async def _watch(self) -> None:
        adopted, leased = False, -_LEASE_EVERY
        while True:
            try:
                if not adopted:
                    await self._adopt()
                    adopted = True
                if self._heard and self._clock() - leased >= _LEASE_EVERY:
                    await self._registry.renew(self._site)
                    leased = self._clock()
                await self._expire()
            except (NearcastError, NatsError, TimeoutError) as error:
                _log.debug("channels at %s: %s", self._site, error)
            await asyncio.sleep(_LOOK_EVERY)

    async def _adopt(self) -> None:
        """Rows that an agent before us made; their clients have a moment to renew."""
        for name in await self._registry.held_by(self._site):
            self._heard.setdefault(name, {}).setdefault(_ADOPTED, self._clock())

    async def _expire(self) -> None:
        oldest = self._clock() - _GONE_AFTER
        for name, clients in list(self._heard.items()):
            for client in [client for client, heard in clients.items() if heard < oldest]:
                del clients[client]
            await self._drop_if_empty(name)

    async def _drop_if_empty(self, name: str) -> None:
        if self._heard.get(name) == {}:
            del self._heard[name]
            channel, _, key = name.partition(".")
            await self._registry.unsubscribe(channel, key, self._site)
