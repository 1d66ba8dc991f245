"""Following a bucket."""

from __future__ import annotations

from typing import Any, cast

from nearcast.nats.kv import Bucket, BucketFollower
from nearcast.nats.streams import StoredEntry


class Changes:
    """A bucket of which only the list of changes matters."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, StoredEntry]] = []
        self.last = 0

    def put(self, key: str, value: bytes) -> None:
        self.last += 1
        self.entries = [(k, entry) for k, entry in self.entries if k != key]
        self.entries.append((key, StoredEntry(self.last, key, 0, b"", value)))

    async def last_revision(self) -> int:
        return self.last

    async def changes(self, after: int) -> list[tuple[str, StoredEntry]]:
        return [(key, entry) for key, entry in self.entries if entry.sequence > after]


async def test_a_follower_gives_each_change_once_and_removals_without_a_value() -> None:
    bucket = Changes()
    follower = BucketFollower(cast("Bucket", cast("Any", bucket)))
    assert await follower.changes() == []
    bucket.put("a", b"1")
    bucket.put("b", b"2")
    bucket.put("a", b"3")
    assert await follower.changes() == [("b", b"2"), ("a", b"3")]
    assert await follower.changes() == []
    bucket.put("a", b"")
    assert await follower.changes() == [("a", None)]


async def test_a_follower_reads_a_bucket_that_was_created_again_from_its_beginning() -> None:
    bucket = Changes()
    follower = BucketFollower(cast("Bucket", cast("Any", bucket)))
    for n in range(5):
        bucket.put("a", b"%d" % n)
    await follower.changes()
    bucket.entries, bucket.last = [], 0
    bucket.put("b", b"new")
    assert await follower.changes() == [("b", b"new")]
