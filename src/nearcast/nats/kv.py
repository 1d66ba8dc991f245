"""Key-value buckets in a site's store, used through any broker and changed by compare-and-set.

nats-py's own buckets do not serve here: a store lets no `$KV` subject in from another JetStream domain unless it comes
below the API's prefix; their way to list keys takes a consumer for done while messages are on their way, so that a
bucket seemed empty (2 of 2,700 times beside load); and each removal leaves a marker for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
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
_WRONG_LAST_SEQUENCE = 10071
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


def bucket_subject(bucket: str, key: str) -> str:
    """The subject of a key, or of a pattern of keys, in the stream of a bucket."""
    return f"$KV.{bucket}.{key}"


class Bucket:
    """A bucket in the store of a site. A revision is the number of the change that made a value."""

    def __init__(self, connection: Connection, site: str, name: str, *, timeout: float = 5.0) -> None:
        self.name, self._site = name, site
        prefix = subjects.store_api(site)
        self._js = connection.jetstream(domain=site, timeout=timeout)
        self._jsm = connection.jsm(prefix=prefix, timeout=timeout)
        self._reader = StreamReader(connection, prefix, timeout)
        self._subject = bucket_subject(name, "")
        self._publish_to = f"{prefix}.{self._subject}"

    async def create(self, *, within: float = 0.0) -> Bucket:
        """Make it if it is not there; waits that long for a store that is still starting."""
        config = KeyValueConfig(bucket=self.name, history=1, storage=StorageType.FILE, direct=True)
        try:
            await retry(
                lambda: self._js.create_key_value(config), within=within, on=(NatsError, TimeoutError), pause=0.2
            )
        except (NatsError, TimeoutError) as error:
            raise BucketError(
                f"site {self._site}: its store does not answer ({error or 'timed out'}); is it up?"
            ) from error
        return self

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
                batch = await self._reader.read(bucket_stream(self.name), f"{self._subject}>", after + 1, _PAGE)
            except StreamError as error:
                await self.require()
                raise self._error(error) from error
            found += [(entry.subject.removeprefix(self._subject), entry) for entry in batch.entries]
            exhausted = batch.exhausted
            after = batch.entries[-1].sequence if batch.entries else after
        return found

    async def get(self, key: str) -> StoredEntry | None:
        """The value of a key as it is now."""
        try:
            entry = await self._reader.last(bucket_stream(self.name), self._subject + key)
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
            await self._jsm.purge_stream(bucket_stream(self.name), seq=revision + 1, subject=self._subject + key)
        except (NatsError, TimeoutError, OSError) as error:
            raise self._error(error) from error

    async def _publish(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        async def publish() -> int:
            return (await self._js.publish(self._publish_to + key, value, headers=headers or None)).seq

        try:
            return await retry(publish, within=_KNOWN_WITHIN, on=NoStreamResponseError)
        except APIError as error:
            if error.err_code == _WRONG_LAST_SEQUENCE:
                raise ConflictError(f"{key} of bucket {self.name} was changed by another writer") from None
            raise self._error(error) from error
        except (NatsError, TimeoutError, OSError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> BucketError:
        return BucketError(f"bucket {self.name} of site {self._site}: {error or 'timed out'}")


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
