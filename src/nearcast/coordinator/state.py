"""All that a coordinator must not forget: a key-value bucket in the cloud's store, changed by compare-and-set only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError
from nats.js.api import StorageType
from nats.js.errors import APIError, KeyNotFoundError, KeyWrongLastSequenceError

from nearcast.domain.errors import NearcastError
from nearcast.wire import subjects
from nearcast.wire.registration import STATE_BUCKET
from nearcast.wire.stream import StreamReader, bucket_stream

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from nearcast.wire.connection import Connection

__all__ = ["ConflictError", "State", "StateError"]


class StateError(NearcastError):
    """The store that holds the coordinators' state does not answer."""


class ConflictError(NearcastError):
    """Somebody else changed the key first."""


class _Through:
    """JetStream as seen from another domain: keys are written under the API's prefix, all else is as it is.

    A store lets no `$KV` subject in from outside its domain; nats-py does not know of that yet.
    """

    def __init__(self, jetstream: Any, prefix: str) -> None:
        self._jetstream, self._prefix = jetstream, prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jetstream, name)

    async def publish(self, subject: str, *args: Any, **kwargs: Any) -> Any:
        return await self._jetstream.publish(f"{self._prefix}{subject}", *args, **kwargs)


class State:
    """A bucket with remembered revisions: a write succeeds only if nobody wrote since this one last looked."""

    def __init__(self, bucket: KeyValue, reader: StreamReader) -> None:
        self._bucket, self._reader = bucket, reader
        self._revisions: dict[str, int] = {}

    @classmethod
    async def open(cls, connection: Connection, site: str, wait: float = 30.0) -> State:
        """The bucket in the store of a site, made if it is not there; waits for a store that is still starting."""
        jetstream = connection.jetstream(domain=site, timeout=5)
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait
        while True:
            try:
                bucket = await jetstream.create_key_value(
                    bucket=STATE_BUCKET, history=1, storage=StorageType.FILE, direct=True
                )
                bucket._js = _Through(jetstream, f"{subjects.store_api(site)}.")  # type: ignore[assignment]
                return cls(bucket, StreamReader(connection, subjects.store_api(site)))
            except (APIError, NatsError, TimeoutError) as error:
                if clock() > deadline:
                    reason = error or "timed out"
                    raise StateError(f"site {site}: its store does not answer ({reason}); is it up?") from error
                await asyncio.sleep(0.2)

    async def everything(self) -> dict[str, tuple[bytes, int]]:
        """All keys with their values and revisions."""
        try:
            found = await self._reader.read_bucket(STATE_BUCKET)
        except NearcastError as error:
            raise StateError(f"the coordinators' state cannot be read: {error}") from error
        self._revisions = {key: entry.sequence for key, entry in found.items()}
        return {key: (entry.payload, entry.sequence) for key, entry in found.items()}

    def revision_of(self, key: str) -> int:
        """The revision of a key when it was last read or written here."""
        return self._revisions.get(key, 0)

    async def read(self, key: str) -> bytes | None:
        """The value of a key as it is now; what is written next is compared with it."""
        try:
            entry = await self._guarded(self._bucket.get(key))
        except KeyNotFoundError:
            self._revisions.pop(key, None)
            return None
        self._revisions[key] = entry.revision
        return bytes(entry.value)

    async def write(self, key: str, value: msgspec.Struct) -> int:
        """Write a key if nobody else did since; the new revision is returned."""
        body, known = msgspec.json.encode(value), self._revisions.get(key)
        try:
            if known is None:
                revision = await self._guarded(self._bucket.create(key, body))
            else:
                revision = await self._guarded(self._bucket.update(key, body, last=known))
        except KeyWrongLastSequenceError:
            raise ConflictError(f"{key} was changed by another coordinator") from None
        self._revisions[key] = revision
        return int(revision)

    async def erase(self, key: str) -> None:
        """Remove a key, as far as it is known here: what somebody else wrote since stays.

        Nothing is left of it. A bucket's own way leaves a word of each removal, for ever, and moves are many.
        """
        known = self._revisions.get(key)
        if known is None:
            return
        try:
            await self._guarded(
                self._bucket._js.purge_stream(
                    bucket_stream(STATE_BUCKET), seq=known + 1, subject=f"$KV.{STATE_BUCKET}.{key}"
                )
            )
        except APIError as error:
            raise StateError(f"{key} cannot be removed: {error}") from error
        if self._revisions.get(key) == known:
            del self._revisions[key]

    async def _guarded(self, work: Any) -> Any:
        try:
            return await work
        except (KeyNotFoundError, KeyWrongLastSequenceError, APIError):
            raise
        except (NatsError, TimeoutError, OSError) as error:
            raise StateError(f"the coordinators' state cannot be reached: {error or 'timed out'}") from error
