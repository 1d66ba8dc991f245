"""What a store says of its contents to the other replicas of a topic: digests, runs and hashes of messages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import Endpoint
from nearcast.protocol.repair import DigestsAnswer, DigestsRequest, HashesAnswer, HashesRequest, RunsAnswer, RunsRequest
from nearcast.site.agent.repair_machine import QUIET
from nearcast.site.agent.store_index import bucket_of
from nearcast.site.agent.store_tail import entry_hash

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from nearcast.nats.streams import StoredEntry
    from nearcast.site.agent.store_index import StreamIndex
    from nearcast.site.agent.store_tail import StoreTail

__all__ = ["ReplicaContents", "all_hashes", "merged_ranges", "missing_sequences"]

_DIGESTS = 10_000  # of one answer
_HASHES = 20_000
# A message that says it is from later than that is not compared: stores that have removed it would get it from each
# other again and again.
_AHEAD = 24 * 3600.0


class ReplicaContents:
    """Answers for one store."""

    def __init__(self, site: str, tail: StoreTail) -> None:
        self._site, self._tail = site, tail
        self.endpoints = [
            Endpoint("digests", subjects.replica(site, "digests"), DigestsRequest, self.digests, "msgpack"),
            Endpoint("runs", subjects.replica(site, "runs"), RunsRequest, self._runs, "msgpack"),
            Endpoint("hashes", subjects.replica(site, "hashes"), HashesRequest, self.hashes, "msgpack"),
        ]

    async def digests(self, request: DigestsRequest) -> DigestsAnswer:
        """A page of digests."""
        index, now = self._index(request.topic), time.time()
        changed_after = now - request.changed_within if request.changed_within else float("-inf")
        quiet = (now - request.quiet, now) if request.quiet else (0.0, 0.0)
        buckets = range(request.start, bucket_of(int((now + _AHEAD) * 1e6)))
        found = index.digests(buckets, _DIGESTS, changed_after, quiet)
        following = found[-1].bucket + 1 if len(found) == _DIGESTS else 0
        return DigestsAnswer([(one.bucket, one.messages, one.digest) for one in found], index.floor, following)

    async def hashes(self, request: HashesRequest) -> HashesAnswer:
        """A page of hashes. Messages without an id that are only seconds old may not have reached every replica."""
        named: list[tuple[int, int]] = []
        anonymous: list[tuple[int, int]] = []
        left_out, newest_us = 0, int((time.time() - QUIET) * 1e6)
        async for entry in self._messages(request.topic, request.bucket, request.after):
            if entry.id:
                named.append((entry_hash(entry), entry.sequence))
            elif entry.time_us < newest_us:
                anonymous.append((entry_hash(entry), entry.sequence))
            else:
                left_out += 1
            if len(named) + len(anonymous) >= _HASHES:
                return HashesAnswer(named, anonymous, entry.sequence, left_out)
        return HashesAnswer(named, anonymous, 0, left_out)

    async def _runs(self, request: RunsRequest) -> RunsAnswer:
        runs = self._index(request.topic).runs(request.first, request.last + 1, 1 << 20)
        return RunsAnswer(merged_ranges((run.first, run.last) for run in runs))

    async def _messages(self, topic: str, bucket: int, after: int) -> AsyncGenerator[StoredEntry, None]:
        stream = subjects.stream_name(topic)
        runs = self._index(topic).runs(bucket, bucket + 1, 1)
        for first, last in merged_ranges((run.first, run.last) for run in runs if run.last > after):
            start = max(first, after + 1)
            while start <= last:
                entries = await self._tail.reader.read_range(stream, ">", start, min(start + 2_000, last + 1))
                for entry in entries:
                    if bucket_of(entry.time_us) == bucket:
                        yield entry
                start += 2_000

    def _index(self, topic: str) -> StreamIndex:
        index = self._tail.index(subjects.stream_name(topic))
        if index is None:
            raise NearcastError(f"the store of {self._site} is still indexing topic {topic}")
        return index


async def all_hashes(ask: Callable[[HashesRequest], Awaitable[HashesAnswer]], topic: str, bucket: int) -> HashesAnswer:
    """All hashes of a bucket, page by page."""
    found, after, left_out, more = HashesAnswer([], []), 0, 0, True
    while more:
        page = await ask(HashesRequest(topic, bucket, after))
        found.named.extend(page.named)
        found.anonymous.extend(page.anonymous)
        after, left_out, more = page.next, left_out + page.left_out, bool(page.next)
    return HashesAnswer(found.named, found.anonymous, 0, left_out)


def merged_ranges(ranges: Iterable[tuple[int, int]], gap: int = 1) -> list[tuple[int, int]]:
    """Ranges in order, those that overlap or are at most `gap` apart as one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def missing_sequences(theirs: Iterable[tuple[int, int]], ours: Counter[int]) -> list[int]:
    """Sequences of those of their messages (hash, sequence) that are not among ours, by number of each hash."""
    left, missing = Counter(ours), []
    for number, sequence in theirs:
        if left[number] > 0:
            left[number] -= 1
        else:
            missing.append(sequence)
    return missing
