"""Reads what a store keeps of one subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.nats.stamp import reason_of
from nearcast.nats.streams import parse_entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nearcast.nats.streams import StoredEntry, StreamReader

__all__ = ["stored_messages"]

_PAGE = 1000


async def stored_messages(
    reader: StreamReader, stream: str, subject: str, since_us: int | None = None
) -> AsyncIterator[tuple[StoredEntry, str]]:
    """The messages of a subject, all or those stored from a time on, with the reason in their headers."""
    start = 1
    if since_us is not None:
        first = (await reader.read(stream, subject, 1, 1, since_us=since_us)).entries
        if not first:
            return
        start = first[0].sequence
    while True:
        batch = await reader.read_raw(stream, start, _PAGE, subject)
        for payload, headers in zip(batch.payloads, batch.headers, strict=True):
            entry = parse_entry(payload, headers)
            start = entry.sequence + 1
            yield entry, reason_of(headers)
        if not batch.pending or not batch.payloads:
            return
