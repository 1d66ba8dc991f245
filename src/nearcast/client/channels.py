"""The client's side of channels: subscribe through the agent of the home, renew, leave."""

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
from nearcast.protocol.services import (
    ChannelAnswer,
    ChannelRequest,
    ConfirmAnswer,
    ConfirmRequest,
    DatasetRequest,
    RenewAnswer,
    RenewRequest,
)

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["ChannelMember", "HeldChannel", "HeldChannels"]

_log = logging.getLogger(__name__)
_RENEW_EVERY, _RENEW_TIMEOUT = 2.0, 4.0
# As many keys as surely fit into one message.
_KEYS_AT_ONCE = 2_000
T = TypeVar("T")


class HeldChannel(msgspec.Struct):
    """One channel subscription of a client, and how many of its Subscription objects share it."""

    channel: str
    params: dict[str, Any]
    count: int = 0


HeldChannels = dict[str, HeldChannel]
"""By `channel.key`. All sessions of a client share one: what was held by one is renewed by the next."""


class ChannelMember:
    """The channel subscriptions of one client, through one connection. The agent forgets those that are not renewed."""

    def __init__(self, client: str, connection: Connection, held: HeldChannels) -> None:
        self._client, self._connection, self._held = client, connection, held
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def held(self) -> list[str]:
        """The subscriptions of this client, as `channel.key`."""
        return sorted(self._held)

    async def join(self, channel: str, params: Mapping[str, Any]) -> ChannelAnswer:
        """Subscribe; the answer has the key under which results come, and the site whose store keeps them."""
        answer = await self._register(channel, dict(params))
        self._held.setdefault(f"{channel}.{answer.key}", HeldChannel(channel, dict(params))).count += 1
        self._start_renewing()
        return answer

    async def is_active(self, revision: int) -> bool:
        """Whether the data cluster has the subscription of this revision in its tables; waits some seconds for it."""
        return (await self._ask("confirm", ConfirmRequest(revision), ConfirmAnswer)).confirmed

    def leave(self, name: str) -> None:
        """End one subscription; when it was the client's last to these results, tell the agent."""
        held = self._held.get(name)
        if held is None:
            return
        held.count -= 1
        if held.count == 0:
            del self._held[name]
            if self._connection.is_connected:
                subject = f"{subjects.channels_service(self._connection.server_name, 'leave')}.{self._client}"
                self._connection.send(subject, b"", msgspec.json.encode(RenewRequest(self._client, [name])))

    async def find_dataset(self, dataset: str) -> str:
        """The site whose store keeps the records of a dataset; an InputError when it takes none."""
        return (await self._ask("dataset", DatasetRequest(dataset), ChannelAnswer)).store

    async def take_over(self) -> None:
        """Renew what the session before held, now and from now on."""
        self._start_renewing()
        await self._renew()

    async def close(self) -> None:
        """Stop renewing."""
        self._closed = True
        await cancel_and_wait(self._task)

    def _start_renewing(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._renew_forever(), name=f"channels of {self._client}")

    async def _register(self, channel: str, params: dict[str, Any]) -> ChannelAnswer:
        return await self._ask("subscribe", ChannelRequest(self._client, channel, params), ChannelAnswer)

    async def _ask(self, verb: str, request: msgspec.Struct, kind: type[T], timeout: float = 10.0) -> T:
        home = self._connection.server_name
        subject = subjects.channels_service(home, verb)
        if isinstance(request, ChannelRequest | RenewRequest):
            subject = f"{subject}.{self._client}"
        try:
            return await call(self._connection, subject, request, kind, timeout=timeout)
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
            except Exception:
                _log.exception("client %s: channel subscriptions are not renewed", self._client)

    async def _renew(self) -> None:
        names = list(self._held)
        for start in range(0, len(names), _KEYS_AT_ONCE):
            some = names[start : start + _KEYS_AT_ONCE]
            answer = await self._ask("renew", RenewRequest(self._client, some), RenewAnswer, _RENEW_TIMEOUT)
            for name in answer.unknown:  # another home, or an agent that started again
                if name in self._held:
                    held = self._held[name]
                    await self._register(held.channel, held.params)
