"""What the replicas of a topic ask each other, to find what one of them lacks. Buckets are those of the store index."""

from __future__ import annotations

import msgspec

from nearcast.domain.ranges import AnyTopic, Count, Hash, Seconds, Sequence

__all__ = ["DigestsAnswer", "DigestsRequest", "HashesAnswer", "HashesRequest", "RunsAnswer", "RunsRequest"]


class DigestsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Count and digest of a topic's buckets, from `start` on.

    changed_within: only of buckets that changed within so many seconds; 0 for all. quiet: not of those that changed
    within the last so many seconds.
    """

    topic: AnyTopic
    start: Count = 0
    changed_within: Seconds = 0.0
    quiet: Seconds = 0.0


class DigestsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Bucket, count and digest of each. floor: before it messages were removed by the stream's limits.

    next: where to continue; 0 at the end.
    """

    digests: list[tuple[Count, Count, Hash]]
    floor: Count
    next: Count = 0


class RunsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Where the messages of the buckets from `first` to `last` are."""

    topic: AnyTopic
    first: Count
    last: Count


class RunsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """First and last sequences that hold them, perhaps with others among them."""

    runs: list[tuple[Sequence, Sequence]]


class HashesRequest(msgspec.Struct, frozen=True, array_like=True):
    """The messages of a bucket, those above a sequence."""

    topic: AnyTopic
    bucket: Count
    after: Count = 0


class HashesAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Hash and sequence of each message; of those without an id apart. next: where to continue; 0 at the end.

    left_out: how many messages without an id are too new to tell whether every replica has them.
    """

    named: list[tuple[Hash, Sequence]]
    anonymous: list[tuple[Hash, Sequence]]
    next: Count = 0
    left_out: Count = 0
