"""How far publications of durable topics were processed: what their stores know, for workers that come to a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nearcast.domain.number_ranges import NumberRanges
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint, call
from nearcast.protocol.marks import ProgressAnswer, ProgressRequest, SourceProgress

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection
    from nearcast.site.agent.catch_up import CatchUp
    from nearcast.site.agent.topic_directory import TopicDirectory

__all__ = ["ProcessingProgress", "merged_progress"]

_TIMEOUT = 5.0


class ProcessingProgress:
    """Answers the workers of a site by asking the stores of the topic; and other sites, where this one has a store."""

    def __init__(
        self, site: str, connection: Connection, directory: TopicDirectory, catch_up: CatchUp | None = None
    ) -> None:
        self._connection, self._directory = connection, directory
        self.endpoints = [Endpoint("progress", subjects.progress(site), ProgressRequest, self._ask_stores, "msgpack")]
        if catch_up is not None:
            subject = subjects.replica(site, "progress")
            self.endpoints.append(Endpoint("store-progress", subject, ProgressRequest, catch_up.progress, "msgpack"))

    async def _ask_stores(self, request: ProgressRequest) -> ProgressAnswer:
        """Of so many stores that each acknowledged publication is in one of them."""
        spec = next((spec for spec in self._directory.topics if spec.name == request.family), None)
        if spec is None or not spec.durable:
            raise InputError(f"{request.family!r} is no durable topic")
        needed = len(spec.replicas) - max(spec.quorum, 1) + 1
        asked = (self._ask(site, request) for site in spec.replicas)
        answers = [answer for answer in await asyncio.gather(*asked) if answer is not None]
        if len(answers) < needed:
            raise NearcastError(f"{len(answers)} of {needed} stores of topic {spec.name} can tell what was processed")
        return merged_progress(answers)

    async def _ask(self, site: str, request: ProgressRequest) -> ProgressAnswer | None:
        subject = subjects.replica(site, "progress")
        try:
            answer = await call(
                self._connection, subject, request, ProgressAnswer, timeout=_TIMEOUT, encoding="msgpack"
            )
        except NearcastError:  # it is away, or has not caught up
            return None
        return answer if len(answer.sources) == len(request.sources) else None


def merged_progress(answers: Sequence[ProgressAnswer]) -> ProgressAnswer:
    """What one store knows to be marked is; what none knows to be marked, and one has, is not."""
    merged = []
    for of_source in zip(*(answer.sources for answer in answers), strict=True):
        marked, unmarked = NumberRanges(), NumberRanges()
        for one in of_source:
            for first, last in NumberRanges(one.marked):
                marked.add(first, last)
            for first, last in NumberRanges(one.unmarked):
                unmarked.add(first, last)
        merged.append(SourceProgress(marked.flat(), unmarked.without(marked).flat()))
    return ProgressAnswer(merged)
