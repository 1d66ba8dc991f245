"""The client's side of channels: subscribe through the home site's agent, stay subscribed, leave; and feed records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.nats.tasks import cancel_and_wait
from nearcast.protocol.services import ChannelAnswer, ChannelRequest, DatasetRequest, RenewAnswer, RenewRequest

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["ChannelMember", "FixedStore"]

_log = logging.getLogger(__name__)
_RENEW_EVERY = 2.0
# As many keys as surely fit into one message.
_KEYS_AT_ONCE = 2_000
T = TypeVar("T")


class FixedStore:
    """A finder of stores that knows the one: results are kept by the cloud."""

    def __init__(self, site: str) -> None:
        self._site = site

    async def find(self, topic: str) -> list[str]:
        return [self._site]


class ChannelMember:
    """The channel subscriptions of one client. The agent forgets those that are not renewed."""

    def __init__(self, client: str, connection: Connection) -> None:
        self._client, self._connection = client, connection
        self._held: dict[str, tuple[str, dict[str, Any], int]] = {}
        self._task: asyncio.Task[None] | None = None
        self._home = ""
        self._datasets: set[str] = set()

    @property
    def held(self) -> list[str]:
        """The subscriptions of this client, as `channel.key`."""
        return sorted(self._held)

    async def join(self, channel: str, params: Mapping[str, Any]) -> ChannelAnswer:
        """Subscribe; the answer has the key under which results come, and who keeps them."""
        self._home = self._home or self._connection.server_name
        answer = await self._register(channel, dict(params))
        name = f"{channel}.{answer.key}"
        _, _, count = self._held.get(name, (channel, {}, 0))
        self._held[name] = (channel, dict(params), count + 1)
        if self._task is None:
            self._task = asyncio.create_task(self._renew_forever(), name=f"channels of {self._client}")
        return answer

    async def leave(self, name: str) -> None:
        """End one subscription; when it was the client's last of its kind, say so."""
        channel, params, count = self._held.get(name, ("", {}, 0))
        if count > 1:
            self._held[name] = (channel, params, count - 1)
            return
        if self._held.pop(name, None) is not None and self._connection.is_connected:
            subject = subjects.channels_service(self._connection.server_name, "leave")
            self._connection.send(subject, b"", msgspec.json.encode(RenewRequest(self._client, [name])))

    async def hold(self, name: str) -> None:
        """Runs as long as a subscription is open; leaves when it is closed."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.leave(name)

    async def know_dataset(self, dataset: str) -> None:
        """Ask once whether a dataset takes records."""
        if dataset not in self._datasets:
            await self._ask("dataset", DatasetRequest(dataset), ChannelAnswer)
            self._datasets.add(dataset)

    async def move(self, connection: Connection) -> None:
        """Renew through another home from now on, beginning with all that is held."""
        self._connection = connection
        await self._renew()

    async def close(self) -> None:
        """Stop renewing."""
        await cancel_and_wait(self._task)

    async def _register(self, channel: str, params: dict[str, Any]) -> ChannelAnswer:
        return await self._ask("subscribe", ChannelRequest(self._client, channel, params), ChannelAnswer)

    async def _ask(self, verb: str, request: msgspec.Struct, kind: type[T]) -> T:
        home = self._connection.server_name
        try:
            return await call(self._connection, subjects.channels_service(home, verb), request, kind, timeout=10.0)
        except NoAnswerError as error:
            if error.nobody_listens:
                raise NearcastError(
                    f"site {home} has no agent that serves channels; is there a site of kind cloud?"
                ) from error
            raise NearcastError(f"the agent of site {home} does not answer about channels") from error

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            try:
                await self._renew()
            except NearcastError as error:
                _log.warning("client %s: %s", self._client, error)

    async def _renew(self) -> None:
        names = list(self._held)
        for start in range(0, len(names), _KEYS_AT_ONCE):
            some = names[start : start + _KEYS_AT_ONCE]
            answer = await self._ask("renew", RenewRequest(self._client, some), RenewAnswer)
            for name in answer.unknown:  # another home, or an agent that started again
                if name in self._held:
                    channel, params, _ = self._held[name]
                    await self._register(channel, params)
