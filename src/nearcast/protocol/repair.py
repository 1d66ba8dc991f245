"""What the replicas of a topic ask each other, to find what one of them lacks. Buckets are those of the store index."""

from __future__ import annotations

import msgspec

__all__ = ["DigestsAnswer", "DigestsRequest", "HashesAnswer", "HashesRequest", "RunsAnswer", "RunsRequest"]


class DigestsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Count and digest of a topic's buckets, from `start` on.

    changed_within: only of buckets that changed within so many seconds; 0 for all. quiet: not of those that changed
    within the last so many seconds.
    """

    topic: str
    start: int = 0
    changed_within: float = 0.0
    quiet: float = 0.0


class DigestsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Bucket, count and digest of each. floor: before it messages were removed by the stream's limits.

    next: where to go on; 0 at the end.
    """

    digests: list[tuple[int, int, int]]
    floor: int
    next: int = 0


class RunsRequest(msgspec.Struct, frozen=True, array_like=True):
    """Where the messages of the buckets from `first` to `last` are."""

    topic: str
    first: int
    last: int


class RunsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """First and last sequences that hold them, perhaps with others among them."""

    runs: list[tuple[int, int]]


class HashesRequest(msgspec.Struct, frozen=True, array_like=True):
    """The messages of a bucket, those above a sequence."""

    topic: str
    bucket: int
    after: int = 0


class HashesAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Hash and sequence of each message; of those without an id apart. next: where to go on; 0 at the end.

    left_out: how many messages without an id are too new to tell whether every replica has them.
    """

    named: list[tuple[int, int]]
    anonymous: list[tuple[int, int]]
    next: int = 0
    left_out: int = 0
