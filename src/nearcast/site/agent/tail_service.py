"""What a site's store appended recently, for subscribers that fill a gap: in the order of the store, whatever the times
of the messages are. A page names where the next one begins; nothing is kept between requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nearcast.domain.topic import covers
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import CALLER, Endpoint
from nearcast.nats.streams import StreamReader
from nearcast.protocol.services import StoredMessage, TailPage, TailRequest
from nearcast.site.agent.fair_slots import FairSlots

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection
    from nearcast.site.agent.topic_directory import TopicDirectory

__all__ = ["TailService"]

_PARALLEL_READS = 4
_BATCH = 1000
_PAGE_BYTES = 256 << 10
_CLOCKS_APART_US = 60_000_000  # of stores, at most


class TailService:
    """Answers `tail` requests for the topics that this site's store keeps."""

    def __init__(self, directory: TopicDirectory, site: str, store: Connection) -> None:
        self._directory, self._site = directory, site
        self._reader = StreamReader(store)
        self._slots = FairSlots(_PARALLEL_READS)
        subject = subjects.history(site, "tail")
        self.endpoint = Endpoint("history-tail", subject, TailRequest, self._tail, "msgpack", _scope)

    async def _tail(self, request: TailRequest) -> TailPage:
        stream, subject = self._stream_and_subject(request)
        since = time.time_ns() // 1000 - request.within_us if request.cursor is None else None
        async with self._slots.slot(CALLER.get()):
            batch = await self._reader.read(
                stream, subject, request.cursor or 1, _BATCH, since_us=since, max_bytes=_PAGE_BYTES
            )
        # What repair fetched was stored elsewhere long ago: subscribers had it then, or did not exist.
        oldest = time.time_ns() // 1000 - request.within_us - _CLOCKS_APART_US
        found: list[StoredMessage] = []
        size = 0
        for entry in batch.entries:
            if entry.stored_us < oldest or not self._reader.can_pass_on(entry):
                continue
            size += len(entry.payload) + 64
            if found and size > _PAGE_BYTES:  # with it, the page might be more than the broker takes
                return TailPage(found, entry.sequence)
            found.append(StoredMessage(subjects.topic_of(entry.subject), entry.id, entry.payload, entry.time_us))
        if batch.exhausted or not batch.entries:
            return TailPage(found, None)
        return TailPage(found, batch.entries[-1].sequence + 1)

    def _stream_and_subject(self, request: TailRequest) -> tuple[str, str]:
        if request.results:
            channel, _, key = request.topic.partition(".")
            return subjects.channel_stream(channel), subjects.channel_results(channel, key)
        for spec in self._directory.stored_here():
            if covers(spec.name, request.topic):
                kind = subjects.notifications if request.notifications else subjects.publications
                return subjects.stream_name(spec.name), kind(request.topic)
        raise NearcastError(f"topic {request.topic!r} is not one that the store of {self._site} keeps")


def _scope(request: TailRequest) -> str:
    return subjects.history_scope(request.topic, results=request.results)
