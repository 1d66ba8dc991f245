"""What a store holds, by message time: for each stream buckets of 10 s with a count, a digest and the sequences.

Streams are read in the order of their sequences, once; the index is kept in a file, and a restart continues there. It
holds no messages and no ids: a bucket costs some hundred bytes on disk, whatever it counts. Losing the file costs a
scan. Replicas compare digests, history reads its *runs* in the order of time.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nearcast.nats.digest import add_digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["BUCKET_US", "BucketDigest", "IndexedMessage", "Run", "StoreIndex", "StreamIndex", "bucket_of"]

_log = logging.getLogger(__name__)
BUCKET_US = 10_000_000
_RUN_SPAN = 1_000  # sequences that one run covers at most: what history reads at a time
_RUN_GAP = 64  # sequences of other buckets that a run may skip
_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    id INTEGER PRIMARY KEY, name TEXT, current INTEGER, position INTEGER, anchor INTEGER, first INTEGER, floor INTEGER);
CREATE TABLE IF NOT EXISTS buckets (
    stream INTEGER, bucket INTEGER, count INTEGER, digest INTEGER, changed REAL,
    PRIMARY KEY (stream, bucket)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS changes ON buckets (stream, changed);
CREATE TABLE IF NOT EXISTS runs (
    stream INTEGER, bucket INTEGER, first INTEGER, last INTEGER, low_us INTEGER, high_us INTEGER,
    PRIMARY KEY (stream, bucket, first)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS oldest ON runs (stream, first);
"""


def bucket_of(time_us: int) -> int:
    """The bucket of a message's time."""
    return time_us // BUCKET_US


class IndexedMessage(NamedTuple):
    """What the index learns of a message. hash: `content_hash`."""

    sequence: int
    time_us: int
    hash: int


class BucketDigest(NamedTuple):
    """Count and digest of a bucket."""

    bucket: int
    messages: int
    digest: int


@dataclass
class Run:
    """Sequences that hold messages of one bucket, perhaps with others among them; times of those of the bucket."""

    bucket: int
    first: int
    last: int
    low_us: int
    high_us: int

    def __contains__(self, sequence: int) -> bool:
        return self.first <= sequence <= self.last


@dataclass
class _Bucket:
    count: int
    digest: int
    changed: float
    run: Run | None  # the last one
    new: list[Run]  # not written yet, the last one perhaps among them


class StoreIndex:
    """The index file of one store. A file that cannot be read is rebuilt."""

    def __init__(self, file: Path | None) -> None:
        """file: None keeps the index in memory."""
        self._file = file
        self._database = self._open()

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def stream(self, name: str) -> StreamIndex:
        """The index of a stream; an empty one if it was not there."""
        found = self._database.execute("SELECT id FROM streams WHERE name = ? AND current", (name,)).fetchone()
        return StreamIndex(self._database, name, found[0] if found else self._add(name, 1))

    def rebuilt(self, name: str) -> StreamIndex:
        """A second, empty index of a stream; `replace` puts it in the place of the current one."""
        self._delete("name = ? AND NOT current", (name,))
        return StreamIndex(self._database, name, self._add(name, 0))

    def replace(self, fresh: StreamIndex) -> None:
        """Let a rebuilt index be the stream's from now on."""
        fresh.flush()
        self._delete("name = ? AND current", (fresh.name,))
        with self._database:
            self._database.execute("UPDATE streams SET current = 1 WHERE id = ?", (fresh.id,))

    def _add(self, name: str, current: int) -> int:
        with self._database:
            row = "INSERT INTO streams (name, current, position, anchor, first, floor) VALUES (?, ?, 0, 0, 1, 0)"
            return int(self._database.execute(row, (name, current)).lastrowid or 0)

    def _delete(self, condition: str, values: Sequence[object]) -> None:
        with self._database:
            for (stream,) in self._database.execute(f"SELECT id FROM streams WHERE {condition}", values).fetchall():
                for table in ("buckets", "runs"):
                    self._database.execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))
                self._database.execute("DELETE FROM streams WHERE id = ?", (stream,))

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if self._file is None:
                raise
            _log.warning("index %s cannot be used (%s); it is rebuilt", self._file, error)
            self._file.unlink()
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        if self._file is not None:
            self._file.touch(mode=0o600)  # SQLite would let everybody on this machine read it
        database = sqlite3.connect(":memory:" if self._file is None else self._file)
        try:
            # What a crash of the machine takes is read from the stream again.
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA journal_mode = WAL")
            if database.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("it is damaged")
            database.executescript(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database


class StreamIndex:
    """The index of one stream.

    position: the last sequence that was read. anchor: the hash of the message there; another one means another stream.
    floor: the first bucket from which nothing was removed by the stream's limits.
    """

    position: int
    anchor: int
    first: int
    floor: int

    def __init__(self, database: sqlite3.Connection, name: str, number: int) -> None:
        self._database, self.name, self.id = database, name, number
        row = database.execute("SELECT position, anchor, first, floor FROM streams WHERE id = ?", (number,)).fetchone()
        self.position, self.anchor, self.first, self.floor = row[0], _unsigned(row[1]), row[2], row[3]
        self.replaced = False  # by another index of the stream
        self._buckets: dict[int, _Bucket] = {}  # those that changed since the last flush
        self._dirty = False

    def add(self, messages: Iterable[IndexedMessage], now: float, position: int = 0) -> None:
        """Messages with sequences above `position`, in order. position: how far was read, if further than they are."""
        for sequence, time_us, number in messages:
            where = time_us // BUCKET_US
            bucket = self._buckets.get(where) or self._load(where)
            bucket.count += 1
            bucket.digest = add_digests(bucket.digest, number)
            bucket.changed = now
            run = bucket.run
            if run is not None and sequence - run.last <= _RUN_GAP and sequence - run.first < _RUN_SPAN:
                run.last = sequence
                run.low_us, run.high_us = min(run.low_us, time_us), max(run.high_us, time_us)
                if not bucket.new:
                    bucket.new.append(run)
            else:
                bucket.run = Run(where, sequence, sequence, time_us, time_us)
                bucket.new.append(bucket.run)
            self.position, self.anchor = sequence, number
        self.position = max(self.position, position)
        self._dirty = True

    def removed(self, first: int, now: float) -> None:
        """The stream begins with this sequence now: limits have removed what was before it.

        now: seconds since 1970. A publisher writes its time itself: one in the future must not raise the floor.
        """
        if first <= self.first:
            return
        self.flush()
        with self._database:
            newest = bucket_of(int(now * 1e6))
            (last,) = self._database.execute(
                "SELECT max(bucket) FROM runs WHERE stream = ? AND first < ? AND bucket <= ?", (self.id, first, newest)
            ).fetchone()
            self._database.execute(
                "DELETE FROM runs WHERE stream = ? AND first < ? AND last < ?", (self.id, first, first)
            )
            if last is not None:
                self.floor = max(self.floor, last + 1)
            self._database.execute(
                "DELETE FROM buckets WHERE stream = ? AND (bucket < ? OR bucket > ?) AND NOT EXISTS"
                " (SELECT 1 FROM runs WHERE runs.stream = buckets.stream AND runs.bucket = buckets.bucket)",
                (self.id, self.floor, newest),
            )
        self.first, self._dirty = first, True

    def digest(self, bucket: int) -> BucketDigest:
        """Of one bucket; an empty one if there is none."""
        if bucket in self._buckets:
            return BucketDigest(bucket, self._buckets[bucket].count, self._buckets[bucket].digest)
        found = self._database.execute(
            "SELECT count, digest FROM buckets WHERE stream = ? AND bucket = ?", (self.id, bucket)
        ).fetchone()
        return BucketDigest(bucket, found[0], _unsigned(found[1])) if found else BucketDigest(bucket, 0, 0)

    def count(self) -> int:
        """How many messages there are."""
        self.flush()
        row = self._database.execute("SELECT coalesce(sum(count), 0) FROM buckets WHERE stream = ?", (self.id,))
        return int(row.fetchone()[0])

    def digests(
        self, buckets: range, limit: int, changed_after: float, quiet: tuple[float, float]
    ) -> list[BucketDigest]:
        """Of those that changed after a time. quiet: without those that changed in this range."""
        self.flush()
        rows = self._database.execute(
            "SELECT bucket, count, digest FROM buckets WHERE stream = ? AND bucket >= ? AND bucket < ? AND changed >= ?"
            " AND NOT (changed > ? AND changed < ?) ORDER BY bucket LIMIT ?",
            (self.id, buckets.start, buckets.stop, changed_after, *quiet, limit),
        )
        return [BucketDigest(bucket, count, _unsigned(digest)) for bucket, count, digest in rows]

    def runs(self, low: int, high: int, limit: int, *, backwards: bool = False) -> list[Run]:
        """Of buckets from `low` to below `high`: whole buckets, until there are at least `limit` runs."""
        self.flush()
        order = "DESC" if backwards else "ASC"
        found: list[Run] = []
        for row in self._database.execute(
            "SELECT bucket, first, last, low_us, high_us FROM runs"
            f" WHERE stream = ? AND bucket >= ? AND bucket < ? ORDER BY bucket {order}",
            (self.id, low, high),
        ):
            if len(found) >= limit and row[0] != found[-1].bucket:
                break
            found.append(Run(*row))
        return found

    def flush(self) -> None:
        """Write what changed."""
        if not self._dirty:
            return
        with self._database:
            self._database.executemany(
                "INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?, ?)",
                [(self.id, key, one.count, _signed(one.digest), one.changed) for key, one in self._buckets.items()],
            )
            self._database.executemany(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (self.id, run.bucket, run.first, run.last, run.low_us, run.high_us)
                    for one in self._buckets.values()
                    for run in one.new
                ],
            )
            self._database.execute(
                "UPDATE streams SET position = ?, anchor = ?, first = ?, floor = ? WHERE id = ?",
                (self.position, _signed(self.anchor), self.first, self.floor, self.id),
            )
        self._buckets.clear()
        self._dirty = False

    def _load(self, bucket: int) -> _Bucket:
        key = (self.id, bucket)
        row = self._database.execute(
            "SELECT count, digest, changed FROM buckets WHERE stream = ? AND bucket = ?", key
        ).fetchone()
        count, digest, changed = row or (0, 0, 0.0)
        last = self._database.execute(
            "SELECT bucket, first, last, low_us, high_us FROM runs WHERE stream = ? AND bucket = ?"
            " ORDER BY first DESC LIMIT 1",
            key,
        ).fetchone()
        found = self._buckets[bucket] = _Bucket(count, _unsigned(digest), changed, Run(*last) if last else None, [])
        return found


def _signed(number: int) -> int:
    """SQLite's integers have a sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _unsigned(number: int) -> int:
    return number + (1 << 64) if number < 0 else number
