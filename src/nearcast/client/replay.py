"""Past messages, then live ones: reads the stores and does what the merge decides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nearcast.client.history import microseconds
from nearcast.client.replay_merge import ReplayMerge
from nearcast.errors import InputError, NearcastError
from nearcast.message import Message
from nearcast.nats.connection import interest_settle
from nearcast.nats.stamp import header_block

if TYPE_CHECKING:
    from nearcast.client.history import HistoryQuery
    from nearcast.client.subscription import Subscription
    from nearcast.nats.connection import Connection

__all__ = ["Replay", "replay_range", "replay_then_live"]

_log = logging.getLogger(__name__)
_READ_EVERY = 0.1
_GIVE_UP = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
_INCOMPLETE_LIMIT = 20.0  # live messages wait meanwhile

Replay = bool | int | datetime | timedelta | None
"""What to replay: all that is kept, the last so many messages, those since a time or within a time span; or nothing."""


async def replay_then_live(
    subscription: Subscription, connection: Connection, subject: str, query: HistoryQuery
) -> None:
    """Subscribe now, deliver the past in the background, then what came live meanwhile, then live messages."""
    merge = ReplayMerge(subscription.buffer)
    subscription.deliver = merge.live
    await subscription.attach(connection, subject)
    await connection.flush()

    async def run() -> None:
        try:
            await _read_until_joined(subscription, query, merge)
        except NearcastError as error:
            subscription.fail(error)
            return
        # Nothing is awaited between the last look and the change-over.
        subscription.note_delivered(merge.delivered_ids())
        subscription.deliver = subscription.put
        for message in merge.finish():
            subscription.put(message)

    subscription.start_replay(run())


async def _read_until_joined(subscription: Subscription, query: HistoryQuery, merge: ReplayMerge) -> None:
    clock = asyncio.get_running_loop().time
    await _read_all(subscription, query, merge)
    merge.caught_up()
    settled_at = clock() + interest_settle()  # before that, a message may be in a store and never come live
    while True:
        await asyncio.sleep(_READ_EVERY)
        now = clock()
        query.continue_after_end()
        await _read_once(subscription, query, merge)
        if merge.joined and now >= settled_at:
            return
        if now > settled_at + _GIVE_UP:
            _log.warning("replay of %s: the last stored message of a publisher did not come live", subscription.topic)
            return


async def _read_all(subscription: Subscription, query: HistoryQuery, merge: ReplayMerge) -> None:
    """The whole past. What a store that lacks something has comes at once, the rest when a store has all of it."""
    clock = asyncio.get_running_loop().time
    pause, give_up_at = _FIRST_PAUSE, clock() + _INCOMPLETE_LIMIT
    while True:
        await _read_once(subscription, query, merge)
        if not query.incomplete:
            return
        if clock() > give_up_at:
            _log.warning("replay of %s may lack messages: no store has caught up with the others", subscription.topic)
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        query.restart()


async def _read_once(subscription: Subscription, query: HistoryQuery, merge: ReplayMerge) -> None:
    async with contextlib.aclosing(query.pages()) as pages:
        async for page in pages:
            for stored in page.messages:
                message = Message(stored.topic, stored.payload, header_block(stored.id), subscription.decode)
                if merge.past(message):
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
