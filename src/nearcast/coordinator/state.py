"""The coordinators' persistent state: a bucket in the cloud's store, changed by compare-and-set only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.kv import Bucket
    from nearcast.nats.streams import StoredEntry

__all__ = ["CoordinatorState"]


class CoordinatorState:
    """The bucket and the revisions last seen: a write fails if another coordinator has written the key since.

    changed: called with each key written here and its value, none for one that was erased.
    """

    def __init__(self, bucket: Bucket, changed: Callable[[str, bytes | None], None] = lambda key, value: None) -> None:
        self._bucket, self._changed = bucket, changed
        self._revisions: dict[str, int] = {}

    async def read_all(self) -> dict[str, StoredEntry]:
        """All keys with their values; `sequence` is the revision."""
        found = await self._bucket.read_all()
        self._revisions = {key: entry.sequence for key, entry in found.items()}
        return found

    def revision_of(self, key: str) -> int:
        """The revision of a key when it was last read or written here."""
        return self._revisions.get(key, 0)

    async def read(self, key: str) -> bytes | None:
        """The present value of a key. The next write is compared with its revision."""
        entry = await self._bucket.get(key)
        if entry is None:
            self._revisions.pop(key, None)
            return None
        self._revisions[key] = entry.sequence
        return entry.payload

    async def write(self, key: str, value: msgspec.Struct) -> int:
        """Write a key; ConflictError if another coordinator has written it since. Returns the new revision."""
        encoded = msgspec.json.encode(value)
        revision = await self._bucket.put(key, encoded, expected=self._revisions.get(key, 0))
        self._revisions[key] = revision
        self._changed(key, encoded)
        return revision

    async def erase(self, key: str) -> None:
        """Remove a key, with no marker left. A value that another coordinator has written since stays."""
        known = self._revisions.get(key)
        if known is None:
            return
        await self._bucket.erase(key, known)
        if self._revisions.get(key) == known:
            del self._revisions[key]
            self._changed(key, None)
