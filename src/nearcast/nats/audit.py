"""The audit log: who changed what, kept in a bucket of the cloud's store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec

from nearcast.nats.boundary import MalformedError, decode
from nearcast.nats.kv import Bucket, BucketNotFoundError

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["AUDIT_BUCKET", "AuditEntry", "AuditLog"]

AUDIT_BUCKET = "nearcast-audit"
_MOST = 10_000
_YEAR_9999 = 253_402_300_799  # what is later cannot be shown


class AuditEntry(msgspec.Struct, frozen=True):
    """time: seconds since 1970. who: the user, `anonymous` if there are no credentials. outcome: done, or why not."""

    time: Annotated[float, msgspec.Meta(ge=0, le=_YEAR_9999)]
    who: str
    action: str
    what: str
    outcome: str = "done"


class AuditLog:
    """Of the deployment whose state is in the store of a site."""

    def __init__(self, connection: Connection, site: str) -> None:
        self._bucket, self._created = Bucket(connection, site, AUDIT_BUCKET), False

    async def note(self, who: str, action: str, what: str, outcome: str = "done") -> None:
        """Append an entry. Raises BucketError when the store does not answer."""
        if not self._created:
            await self._bucket.create()
            self._created = True
        now = time.time_ns()
        await self._bucket.put(f"{now:020d}", msgspec.json.encode(AuditEntry(now / 1e9, who, action, what, outcome)))

    async def entries(self) -> list[AuditEntry]:
        """The entries, the oldest first; the last 10,000."""
        try:
            found = await self._bucket.read_all()
        except BucketNotFoundError:
            return []
        entries: list[AuditEntry] = []
        for _, stored in sorted(found.items())[-_MOST:]:
            try:
                entries.append(decode(stored.payload, AuditEntry))
            except MalformedError as error:
                entries.append(AuditEntry(stored.stored_us / 1e6, "", "unreadable entry", str(error)))
        return entries
