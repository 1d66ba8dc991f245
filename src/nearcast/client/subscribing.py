"""How subscriptions begin: which subjects a topic, a channel or dead letters stand for, and from where on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from nearcast.client.gap_filling import DurablePart, GapFiller
from nearcast.client.history import HistoryQuery
from nearcast.client.replay import Replay, replay_range, replay_then_live
from nearcast.client.store_finder import StoreFinder
from nearcast.client.topic_lookup import look_up_topics
from nearcast.domain.topic import TopicSpec, covers, matches
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.refusals import RefusedError
from nearcast.nats.rpc import call
from nearcast.protocol.registration import SiteCoordinates
from nearcast.protocol.services import HistoryRequest

if TYPE_CHECKING:
    from nearcast.client.cursor import Cursor
    from nearcast.client.session import Sessions
    from nearcast.client.subscription import Subscription
    from nearcast.nats.connection import Connection

__all__ = ["begin_channel", "begin_dead_letters", "begin_topic"]

_ACTIVE_WITHIN = 60.0
_HOME_TIME = 2.0


async def begin_topic(
    subscription: Subscription, sessions: Sessions, replay: Replay, choice: random.Random, cursor: Cursor | None
) -> None:
    """A topic or pattern: notifications of processed topics, publications of the others."""
    pattern = subscription.topic
    specs = await look_up_topics(sessions.connection, pattern)
    processed = [spec for spec in specs if spec.processed]
    durable = _durable_parts(pattern, specs)
    if durable:

        async def look_up() -> list[DurablePart]:
            return _durable_parts(pattern, await look_up_topics(sessions.connection, pattern))

        filler = GapFiller(subscription, sessions, look_up, choice)
        # A publication may be sent again for its quorum.
        subscription.track_deliveries(filler.delivered, filler.note_log)
    elif cursor is not None:
        raise InputError(f"topic {pattern!r}: a cursor needs a durable topic (with `replicas` in the configuration)")
    wanted = []
    if processed:
        wanted.append(subjects.notifications(pattern))
    if not any(covers(spec.name, pattern) for spec in processed):
        wanted.append(subjects.publications(pattern))
        if processed:
            subscription.excluded = _publications_of(processed)
    if _continues(cursor, filler if durable else None) or replay is None or replay is False:
        await _attach(subscription, sessions, *wanted)
    else:
        if len(wanted) != 1 or not any(covers(spec.name, pattern) and spec.replicas for spec in specs):
            raise InputError(
                f"topic {pattern!r}: replay needs one durable topic (with `replicas` in the configuration)"
            )
        since, last = replay_range(replay)
        request = HistoryRequest(pattern, bool(processed), since, None, last)
        query = HistoryQuery(sessions.connection, StoreFinder(sessions.connection, choice).find, request)
        await _replay(subscription, sessions, wanted[0], query)
    if durable:
        await _note_home_time(cursor, sessions)
        await filler.start(durable, cursor)


async def begin_channel(
    subscription: Subscription,
    sessions: Sessions,
    channel: str,
    params: Mapping[str, Any],
    replay: Replay,
    choice: random.Random,
    cursor: Cursor | None,
) -> None:
    """The results of a channel for these values of its parameters."""
    answer = await sessions.current.channels.join(channel, params)
    name = f"{channel}.{answer.key}"
    subscription.on_close(lambda: sessions.current.channels.leave(name))
    await _until_active(sessions, channel, answer.revision)
    part = DurablePart(name, name, (answer.store,), results=True)

    async def look_up() -> list[DurablePart]:
        return [part]

    filler = GapFiller(subscription, sessions, look_up, choice)
    subscription.track_deliveries(filler.delivered, filler.note_log)
    subject = subjects.channel_results(channel, answer.key)
    if _continues(cursor, filler) or replay is None or replay is False:
        await _attach(subscription, sessions, subject)
    else:

        async def find_stores(topic: str) -> list[str]:
            return [answer.store]

        since, last = replay_range(replay)
        request = HistoryRequest(name, False, since, None, last, results=True)
        await _replay(subscription, sessions, subject, HistoryQuery(sessions.connection, find_stores, request))
    await _note_home_time(cursor, sessions)
    await filler.start([part], cursor)


async def _until_active(sessions: Sessions, channel: str, revision: int) -> None:
    """Wait until what is fed from now on is matched with a subscription. Any site can tell: the client may move."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + _ACTIVE_WITHIN
    while clock() < deadline:
        session = sessions.current
        try:
            if await session.channels.is_active(revision):
                return
        except NearcastError:
            if session is sessions.current:
                raise
    raise NearcastError(
        f"channel {channel}: the data cluster did not take the subscription within {_ACTIVE_WITHIN:g} s; "
        "is `nearcast cluster run` up?"
    )


async def _note_home_time(cursor: Cursor | None, sessions: Sessions) -> None:
    """Tell a cursor the time of the home, which is right also if this machine's clock is not."""
    if cursor is None:
        return
    connection = sessions.connection()
    subject = subjects.site_coordinates(connection.server_name)
    with contextlib.suppress(NearcastError):  # a home that is too old or too busy to tell: the own clock has to do
        cursor.note_home_time((await call(connection, subject, None, SiteCoordinates, timeout=_HOME_TIME)).now_us)


async def begin_dead_letters(subscription: Subscription, sessions: Sessions) -> None:
    """Publications that a processor could not handle."""
    subscription.takes_forged = True
    await _attach(subscription, sessions, subjects.dead_letters(subscription.topic))


async def _attach(subscription: Subscription, sessions: Sessions, *wanted: str) -> None:
    connection = sessions.connection()  # not earlier: the client may have moved while it asked
    refused = connection.refusals.subscriptions
    for subject in wanted:
        await subscription.attach(connection, subject)
    await connection.flush()
    _require_taken(subscription, connection, refused)


async def _replay(subscription: Subscription, sessions: Sessions, subject: str, query: HistoryQuery) -> None:
    connection = sessions.connection()
    refused = connection.refusals.subscriptions
    await replay_then_live(subscription, connection, subject, query)
    _require_taken(subscription, connection, refused)


def _require_taken(subscription: Subscription, connection: Connection, refused: int) -> None:
    """The broker says that it refuses one, but not which: all that were made at that moment end."""
    if connection.refusals.subscriptions > refused:
        user = connection.refusals.user
        raise RefusedError(f"{subscription.topic}: {user} has as many subscriptions as it may have; close another one")


def _continues(cursor: Cursor | None, filler: GapFiller | None) -> bool:
    """Whether an earlier process has read a part: then what it read does not come again, and replay does not matter."""
    if cursor is None or cursor.state is None or filler is None:
        return False
    filler.delivered.restore(cursor.state.recent, cursor.state.high_water)
    filler.hold()
    return True


def _durable_parts(pattern: str, specs: list[TopicSpec]) -> list[DurablePart]:
    """What a subscription to a pattern takes of the topics that stores keep."""
    return [
        DurablePart(
            spec.name, pattern if covers(spec.name, pattern) else spec.name, spec.replicas, notifications=spec.processed
        )
        for spec in specs
        if spec.replicas
    ]


def _publications_of(processed: list[TopicSpec]) -> Callable[[str], bool]:
    """Holds for the publications of processed topics; remembers the answer for each subject."""

    @cache
    def excluded(subject: str) -> bool:
        topic = subjects.topic_of(subject)
        return not subjects.is_notification(subject) and any(matches(spec.name, topic) for spec in processed)

    return excluded
