"""The story of a record of a dataset, or of a channel's result, read from the store of the cloud.

A continuous channel answers records in micro-batches: a result says from which to which record it was made. So which
results were made from a batch with a record is known, not which of them the record itself has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from nearcast.client.trace import CLOCKS_US, MessageStory, StoryEvent, find_story
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode
from nearcast.nats.catalog import Catalog
from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator
from nearcast.nats.stamp import message_time, parse_stamp
from nearcast.nats.streams import StreamReader

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection
    from nearcast.nats.streams import StoredEntry

__all__ = ["find_channel_story", "find_whole_story"]

_MOST_RECORDS = 20
_Sequence = Annotated[int, Meta(ge=0, le=1 << 53)]


class _AnsweredRecords(msgspec.Struct, frozen=True):
    """The part of a result that says of which records it was made."""

    execution: _Sequence = 0
    first: _Sequence = 0


async def find_whole_story(connection: Connection, message_id: str, pattern: str = ">") -> MessageStory:
    """The story of a publication or notification of a topic within a pattern, or of a record or a result."""
    try:
        return await find_story(connection, message_id, pattern)
    except InputError as error:
        if pattern != ">" or not message_time(message_id.partition(";")[0].encode()):
            raise
        try:
            store = await _cloud_store(connection)
        except CoordinatorError as missing:
            raise InputError(f"{error}; records and results were not looked for: {missing}") from None
        found = await find_channel_story(connection, store, message_id) if store else None
        if found is None:
            raise InputError(f"{error}, nor is it a record of a dataset or a result of a channel") from None
        return found


async def _cloud_store(connection: Connection) -> str:
    """The site whose store has datasets and channels; nothing where there is none."""
    for site in await call_coordinator(connection, "site", "map", {}, list[dict[str, Any]]):
        if site["kind"] == "cloud" and site["store"]:
            return str(site["site"])
    return ""


async def find_channel_story(connection: Connection, store: str, message_id: str) -> MessageStory | None:
    """The story of a record or a result by its id; None when the store has no such one. store: the cloud's site."""
    catalog = Catalog(connection, store)
    if not await catalog.exists():
        return None
    search = _Search(StreamReader(connection, subjects.store_api(store)), store, message_id)
    channels = await catalog.channels()
    channel = channels.get(search.stamp.publisher)
    if channel is not None and (found := await search.result(channel.name, channel.new)):
        return found
    for dataset in (await catalog.datasets()).values():
        readers = [one.name for one in channels.values() if one.continuous and one.new == dataset.name]
        if dataset.source == subjects.feed(dataset.name) and (found := await search.record(dataset.name, readers)):
            return found
    return None


class _Search:
    """Looks for one message in the streams of datasets and channels."""

    def __init__(self, reader: StreamReader, store: str, message_id: str) -> None:
        self._reader, self._store = reader, store
        self._id = message_id.encode()
        self.stamp = parse_stamp(self._id)
        self._events: list[StoryEvent] = []

    async def record(self, dataset: str, channels: list[str]) -> MessageStory | None:
        stream, since = subjects.feed_stream(dataset), self.stamp.published_us - CLOCKS_US
        if (stored := await self._find(stream, subjects.feed(dataset), since)) is None:
            return None
        self._note(f"stored as record {stored.sequence} of {dataset}", stored)
        for channel in channels:
            await self._results_of(channel, stored)
        return self._story(subjects.feed(dataset))

    async def result(self, channel: str, dataset: str) -> MessageStory | None:
        stream, since = subjects.channel_stream(channel), self.stamp.published_us - CLOCKS_US
        stored = await self._find(stream, subjects.channel_results(channel, self.stamp.home), since)
        if stored is None:
            return None
        self._note("stored", stored)
        answered = _answered(stored)
        if answered is not None and dataset:
            await self._records_of(dataset, answered)
        return self._story(subjects.channel_results(channel, self.stamp.home))

    async def _results_of(self, channel: str, record: StoredEntry) -> None:
        stream, since = subjects.channel_stream(channel), record.stored_us - CLOCKS_US
        async for entry, _ in self._reader.messages(stream, subjects.channel_results(channel, "*"), since):
            answered = _answered(entry)
            if answered is None or answered.execution < record.sequence:
                continue
            if answered.first > record.sequence:  # they are in the order of the records
                return
            alone = answered.first == answered.execution
            of = f"record {answered.first}" if alone else f"records {answered.first} to {answered.execution}"
            key = entry.subject.rpartition(".")[2]
            self._note(f"result of channel {channel}, subscription {key}, of {of}, stored", entry)

    async def _records_of(self, dataset: str, answered: _AnsweredRecords) -> None:
        end = min(answered.execution, answered.first + _MOST_RECORDS - 1) + 1
        found = await self._reader.read_range(
            subjects.feed_stream(dataset), subjects.feed(dataset), answered.first, end
        )
        for entry in found:
            self._note(f"record {entry.sequence} of {dataset}, {entry.id.decode(errors='replace')}, stored", entry)
        if found and answered.execution >= end:
            self._note(f"and records to {answered.execution} after it", found[-1])

    async def _find(self, stream: str, subject: str, since_us: int) -> StoredEntry | None:
        async for entry, _ in self._reader.messages(stream, subject, since_us):
            if entry.id == self._id:
                return entry
        return None

    def _note(self, what: str, entry: StoredEntry) -> None:
        self._events.append(StoryEvent(what, self._store, (entry.stored_us - self.stamp.published_us) / 1000))

    def _story(self, subject: str) -> MessageStory:
        in_order = sorted(self._events, key=lambda event: event.after_ms)
        return MessageStory(subject, self.stamp, tuple(in_order), ())


def _answered(entry: StoredEntry) -> _AnsweredRecords | None:
    """Of which records a result was made; None for one of a scheduled channel, or of an earlier version."""
    try:
        found: _AnsweredRecords = decode(entry.payload, _AnsweredRecords)
    except MalformedError:
        return None
    return found if 0 < found.first <= found.execution else None
