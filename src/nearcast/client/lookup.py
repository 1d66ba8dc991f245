"""What the home's agent knows about topics, and how a topic's publications therefore leave a client."""

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

__all__ = ["Route", "look_up"]

_AGENT_LIMIT = 10.0
_BARE_SERVER = re.compile("N[A-Z2-7]{55}")  # the key a nats-server is named after when nobody named it


class Route:
    """How a topic's publications leave this client, and how many did."""

    __slots__ = ("bytes", "quorum", "sent", "spec", "subject")

    def __init__(self, topic: str, spec: TopicSpec) -> None:
        self.subject, self.spec, self.quorum = subjects.publications(topic), spec, spec.quorum
        self.sent = self.bytes = 0


async def look_up(live: Callable[[], Connection], pattern: str) -> list[TopicSpec]:
    """What is configured for the topics within a pattern. A NATS server that is no site's promises nothing."""

    async def ask() -> list[TopicSpec]:
        home = live().server_name
        try:
            subject = subjects.topics_lookup(home or "none")
            return (await call(live(), subject, TopicsRequest(pattern), TopicsAnswer, timeout=1.0)).topics
        except NoAnswerError as error:
            if error.nobody_listens and _BARE_SERVER.fullmatch(home):
                return []
            raise

    try:
        # A site that has just come back: its agent follows its broker.
        return await retry(ask, within=_AGENT_LIMIT, on=NoAnswerError)
    except NoAnswerError as error:
        if not live().is_connected:
            raise ConnectionLostError(f"topic {pattern}: no broker answers to ask about it") from error
        raise NearcastError(
            f"topic {pattern}: the agent of site {live().server_name} does not answer; is `nearcast site run` up?"
        ) from error
