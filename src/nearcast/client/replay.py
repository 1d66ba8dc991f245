"""Past messages, then live ones: the asyncio shell around the seam."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nearcast.client.history import microseconds
from nearcast.client.seam import Seam
from nearcast.errors import InputError, NearcastError
from nearcast.message import Message
from nearcast.nats.stamp import header_block

if TYPE_CHECKING:
    from nearcast.client.history import HistoryQuery
    from nearcast.client.subscription import Subscription
    from nearcast.nats.connection import Connection

__all__ = ["replay_range", "replay_then_live"]

_log = logging.getLogger(__name__)
# Long enough for a new subscription to be known at every site.
_SETTLE = 0.3
_LOOK_AGAIN = 0.05
_GIVE_UP = 5.0


async def replay_then_live(
    subscription: Subscription, connection: Connection, subject: str, query: HistoryQuery
) -> None:
    """Subscribe now, deliver the past in the background, then what came live meanwhile, then live messages."""
    seam: Seam | None = Seam(subscription.buffer)
    deliver = subscription.put

    def hold_or_deliver(message: Message) -> None:
        if seam is None:
            deliver(message)
        else:
            seam.live(message)

    subscription.divert(hold_or_deliver)
    await subscription.attach(connection, subject)
    await connection.flush()

    async def run() -> None:
        nonlocal seam
        assert seam is not None
        try:
            await _read_until_joined(subscription, query, seam)
        except NearcastError as error:
            subscription.fail(error)
            return
        # Nothing is awaited between the last look and the change-over.
        held, seam = seam.finish(), None
        for message in held:
            deliver(message)

    subscription.adopt(asyncio.create_task(run(), name=f"replay {subscription.topic}"))


async def _read_until_joined(subscription: Subscription, query: HistoryQuery, seam: Seam) -> None:
    clock = asyncio.get_running_loop().time
    await _read_once(subscription, query, seam)
    seam.caught_up()
    pause, deadline = _SETTLE, clock() + _GIVE_UP
    while True:
        await asyncio.sleep(pause)
        query.continue_after_end()
        await _read_once(subscription, query, seam)
        if seam.joined:
            return
        if clock() > deadline:
            _log.warning("replay of %s: some publisher's last message was stored but not seen live", subscription.topic)
            return
        pause = _LOOK_AGAIN


async def _read_once(subscription: Subscription, query: HistoryQuery, seam: Seam) -> None:
    async with contextlib.aclosing(query.pages()) as pages:
        async for page in pages:
            for stored in page.messages:
                message = Message(stored.topic, stored.payload, header_block(stored.id), subscription.decode)
                if seam.past(message):
                    await subscription.put_when_there_is_room(message)


def replay_range(replay: bool | int | datetime | timedelta) -> tuple[int | None, int | None]:
    """Where the past begins: since when (microseconds), or how many of the last messages; neither means all."""
    if replay is True:
        return None, None
    if isinstance(replay, timedelta):
        replay = datetime.now(UTC) - replay
    if isinstance(replay, datetime):
        return microseconds(replay, "replay"), None
    if isinstance(replay, int) and replay > 0:
        return None, replay
    raise InputError(f"replay is {replay!r}; allowed: True, a number of messages, a time, a time span")
