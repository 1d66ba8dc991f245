"""Key-value buckets in a site's store, used through any broker and changed by compare-and-set.

nats-py's own buckets do not serve here: a store lets no `$KV` subject in from another JetStream domain unless it comes
below the API's prefix; their way to list keys takes a consumer for done while messages are on their way, so that a
bucket seemed empty (2 of 2,700 times beside load); and each removal leaves a marker forever.

A store acknowledges a publication to whatever reply its publisher wrote, and an acknowledgement to `$KV.nearcast.lease`
would be the value of a key. So keys stand behind a level that is random for each bucket, and that only those learn who
may ask for the configuration of its stream.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.streams import StoredEntry, StreamError, StreamReader
from nearcast.nats.tasks import retry

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = [
    "CATCH_UP",
    "Bucket",
    "BucketError",
    "BucketFollower",
    "BucketNotFoundError",
    "ConflictError",
    "bucket_stream",
    "bucket_subject",
]

CATCH_UP = "nearcast-catch-up"
"""The bucket in which a store keeps how far it has looked for publications that nobody processed."""
_PAGE = 1000
_WRONG_LAST_SEQUENCE, _NAME_IN_USE = 10071, 10058
# A bucket that was just made may take a moment to be known at the broker.
_KNOWN_WITHIN = 3.0


class BucketError(NearcastError):
    """The store that holds a bucket does not answer, or refuses."""


class BucketNotFoundError(BucketError):
    """There is no such bucket."""


class ConflictError(NearcastError):
    """Somebody else changed the key first."""


def bucket_stream(bucket: str) -> str:
    """The stream behind a key-value bucket."""
    return f"KV_{bucket}"


def bucket_subject(bucket: str, key: str, level: str = "*") -> str:
    """The subject of a key, or of a pattern of keys, in the stream of a bucket. level: the bucket's own."""
    return f"$KV.{bucket}.{level}.{key}"


class Bucket:
    """A bucket in the store of a site. A revision is the number of the change that made a value."""

    def __init__(self, connection: Connection, site: str, name: str, *, timeout: float = 5.0) -> None:
        self.name, self._site = name, site
        self._prefix = subjects.store_api(site)
        self._js = connection.jetstream(domain=site, timeout=timeout)
        self._jsm = connection.jsm(prefix=self._prefix, timeout=timeout)
        self._reader = StreamReader(connection, self._prefix, timeout)
        self._level = ""  # until it is known

    async def create(self, *, within: float = 0.0) -> Bucket:
        """Make it if it is not there; waits that long for a store that is still starting."""
        try:
            await retry(self._ensure_stream, within=within, on=(NatsError, TimeoutError), pause=0.2)
        except (NatsError, TimeoutError) as error:
            raise BucketError(
                f"site {self._site}: its store does not answer ({error or 'timed out'}); is it up?"
            ) from error
        return self

    async def _ensure_stream(self) -> None:
        self._level = ""
        try:
            info = await self._jsm.stream_info(bucket_stream(self.name))
        except NotFoundError:
            try:
                await self._jsm.add_stream(_stream_config(self.name))
            except APIError as error:
                if error.err_code != _NAME_IN_USE:  # another was quicker
                    raise
            return
        if _level_of(info) == ">":
            await self._give_level(info)

    async def _give_level(self, info: StreamInfo) -> None:
        """Take over a bucket of an earlier version, whose keys stood behind no level."""
        stream, old = bucket_stream(self.name), f"$KV.{self.name}."
        entries = await self._reader.read_range(stream, f"{old}>", 1, info.state.last_seq + 1)
        level = _new_level()
        await self._jsm.update_stream(info.config.evolve(subjects=[bucket_subject(self.name, ">", level)]))
        self._level = level
        for entry in entries:
            if entry.payload:
                await self.put(entry.subject.removeprefix(old), entry.payload)
        await self._jsm.purge_stream(stream, seq=info.state.last_seq + 1)

    async def exists(self) -> bool:
        """Whether it was ever made."""
        try:
            await self._jsm.stream_info(bucket_stream(self.name))
        except NotFoundError:
            return False
        except (NatsError, TimeoutError) as error:
            raise self._error(error) from error
        return True

    async def require(self) -> None:
        """Raise BucketNotFoundError if it is not there."""
        if not await self.exists():
            raise BucketNotFoundError(f"site {self._site} has no bucket {self.name}")

    async def read_all(self) -> dict[str, StoredEntry]:
        """All keys with their values; `sequence` is the revision."""
        found: dict[str, StoredEntry] = {}
        for key, entry in await self.changes(0):
            if entry.payload:
                found[key] = entry
            else:
                found.pop(key, None)
        return found

    async def last_revision(self) -> int:
        """The number of the last change."""
        try:
            return (await self._reader.bounds(bucket_stream(self.name))).last
        except StreamError as error:
            raise self._error(error) from error

    async def changes(self, after: int) -> list[tuple[str, StoredEntry]]:
        """(key, entry) of the changes after a revision, in order; an entry without payload marks a removal."""
        found: list[tuple[str, StoredEntry]] = []
        exhausted = False
        while not exhausted:
            try:
                pattern = bucket_subject(self.name, ">")
                batch = await self._reader.read(bucket_stream(self.name), pattern, after + 1, _PAGE)
            except StreamError as error:
                await self.require()
                raise self._error(error) from error
            found += [(entry.subject.split(".", 3)[3], entry) for entry in batch.entries]
            exhausted = batch.exhausted
            after = batch.entries[-1].sequence if batch.entries else after
        return found

    async def get(self, key: str) -> StoredEntry | None:
        """The value of a key as it is now."""
        try:
            entry = await self._reader.last(bucket_stream(self.name), bucket_subject(self.name, key))
        except StreamError as error:
            await self.require()
            raise self._error(error) from error
        return entry if entry is not None and entry.payload else None

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Write a key; its new revision is returned.

        expected: the revision it must have, 0 for a key that must not be there; ConflictError when it has another.
        """
        return await self._publish(
            key, value, {"Nats-Expected-Last-Subject-Sequence": str(expected)} if expected is not None else {}
        )

    async def remove(self, key: str) -> None:
        """Remove a key; a marker is left, by which those who follow the bucket's stream learn of it."""
        await self._publish(key, b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})

    async def erase(self, key: str, revision: int) -> None:
        """Remove a key without a trace, unless it was written after this revision."""
        try:
            subject = bucket_subject(self.name, key)
            await self._jsm.purge_stream(bucket_stream(self.name), seq=revision + 1, subject=subject)
        except (NatsError, TimeoutError, OSError) as error:
            raise self._error(error) from error

    async def _publish(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        async def publish() -> int:
            if not self._level:
                self._level = _level_of(await self._jsm.stream_info(bucket_stream(self.name)))
            subject = f"{self._prefix}.{bucket_subject(self.name, key, self._level)}"
            try:
                return (await self._js.publish(subject, value, headers=headers or None)).seq
            except (NoStreamResponseError, TimeoutError, asyncio.CancelledError):
                self._level = ""  # the store may have lost the bucket, and have another one
                raise

        try:
            return await retry(publish, within=_KNOWN_WITHIN, on=(NoStreamResponseError, NotFoundError))
        except APIError as error:
            if error.err_code == _WRONG_LAST_SEQUENCE:
                raise ConflictError(f"{key} of bucket {self.name} was changed by another writer") from None
            raise self._error(error) from error
        except (NatsError, TimeoutError, OSError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> BucketError:
        return BucketError(f"bucket {self.name} of site {self._site}: {error or 'timed out'}")


def _new_level() -> str:
    return secrets.token_hex(16)


def _level_of(info: StreamInfo) -> str:
    return (info.config.subjects or ["$KV.?.?"])[0].split(".")[2]


def _stream_config(bucket: str) -> StreamConfig:
    """As nats-py makes them for a history of one, but for the subjects."""
    return StreamConfig(
        name=bucket_stream(bucket),
        subjects=[bucket_subject(bucket, ">", _new_level())],
        storage=StorageType.FILE,
        allow_direct=True,
        allow_rollup_hdrs=True,
        deny_delete=True,
        discard=DiscardPolicy.NEW,
        max_msgs_per_subject=1,
    )


class BucketFollower:
    """Gives what changed in a bucket since the last call."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._revision = 0

    @property
    def revision(self) -> int:
        """Of the last change that was given."""
        return self._revision

    async def changes(self) -> list[tuple[str, bytes | None]]:
        """(key, value) of each change, in order; no value means that the key was removed."""
        last = await self._bucket.last_revision()
        if last == self._revision:
            return []
        if last < self._revision:  # the bucket was created again
            self._revision = 0
        found = await self._bucket.changes(self._revision)
        self._revision = max((entry.sequence for _, entry in found), default=last)
        return [(key, entry.payload or None) for key, entry in found]
