"""Asks how far sources of ordered topics were processed before this worker came: what comes of them waits for that."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import call
from nearcast.nats.tasks import repeat
from nearcast.protocol.marks import MOST_SOURCES, ProgressAnswer, ProgressRequest

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection
    from nearcast.site.worker.durable_intake import DurableIntake
    from nearcast.site.worker.topics import TopicFamily, TopicTable

__all__ = ["ProgressQuery"]

_log = logging.getLogger(__name__)
_PERIOD = 0.25
_TIMEOUT = 7.0  # longer than the agent gives the stores


class ProgressQuery:
    """By way of the site's agent, which knows the stores of each topic."""

    def __init__(self, site: str, connection: Connection, intake: DurableIntake) -> None:
        self._subject, self._connection, self._intake = subjects.progress(site), connection, intake

    async def run(self, table: TopicTable) -> None:
        """Ask whenever something waits, until cancelled."""

        async def ask() -> None:
            await asyncio.gather(*(self._ask(family) for family in list(table.families.values())))

        await repeat(ask, _PERIOD, "the progress of topics is not known")

    async def _ask(self, family: TopicFamily) -> None:
        sources = family.order.unknown(MOST_SOURCES)
        if not sources:
            return
        request = ProgressRequest(family.spec.name, sources)
        try:
            answer = await call(
                self._connection, self._subject, request, ProgressAnswer, timeout=_TIMEOUT, encoding="msgpack"
            )
        except NearcastError as error:  # asked again, for a minute
            _log.info("topic %s: how far it was processed is not known yet: %s", family.spec.name, error)
            return
        for (topic, source), progress in zip(sources, answer.sources, strict=False):
            self._intake.learn(family, topic, source, progress)
