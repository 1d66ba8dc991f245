"""What is configured for topics: asked of the agent of the home."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.nats.tasks import retry
from nearcast.protocol.services import TopicsAnswer, TopicsRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection

__all__ = ["look_up", "look_up_topics"]

_AGENT_LIMIT = 10.0
_BARE_SERVER = re.compile("N[A-Z2-7]{55}")  # the key a nats-server is named after when nobody named it


async def look_up_topics(current: Callable[[], Connection], pattern: str) -> list[TopicSpec]:
    """What is configured for the topics within a pattern."""
    return (await look_up(current, pattern)).topics


async def look_up(current: Callable[[], Connection], pattern: str) -> TopicsAnswer:
    """What the home's agent says about the topics within a pattern. On a server that is no site's broker: nothing.

    current: gives the connection to ask through; it may change while this waits.
    """

    async def ask() -> TopicsAnswer:
        home = current().server_name
        if current().is_closed:
            raise ConnectionLostError(f"topic {pattern}: the connection is closed")
        try:
            subject = subjects.topics_lookup(home or "none")
            return await call(current(), subject, TopicsRequest(pattern), TopicsAnswer, timeout=1.0)
        except NoAnswerError as error:
            if error.nobody_listens and _BARE_SERVER.fullmatch(home):
                return TopicsAnswer()
            raise

    try:
        # A site that has just come back: its agent follows its broker.
        return await retry(ask, within=_AGENT_LIMIT, on=NoAnswerError)
    except NoAnswerError as error:
        if not current().is_connected:
            raise ConnectionLostError(f"topic {pattern}: no broker answers to ask about it") from error
        raise NearcastError(
            f"topic {pattern}: the agent of site {current().server_name} does not answer; is `nearcast site run` up?"
        ) from error
