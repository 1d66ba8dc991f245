"""Follows a bucket of the registry: what changed since the last look, by the sequences of the stream behind it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nearcast.nats.kv import bucket_stream

if TYPE_CHECKING:
    from nearcast.cluster.fetch import Link

__all__ = ["Tail"]

_ENTRY = re.compile(rb"\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d+)\r\n")


class Tail:
    """One reader of one bucket."""

    def __init__(self, link: Link, bucket: str, prefix: str) -> None:
        self._link, self._prefix = link, prefix
        self._stream = bucket_stream(bucket)
        self._skip = len(f"$KV.{bucket}.")
        self._position = 0

    def changes(self) -> list[tuple[str, bytes | None]]:
        """(key, value) of each entry that changed, in order; no value means that it was removed."""
        state = self._link.state(self._stream, self._prefix)
        found: list[tuple[str, bytes | None]] = []
        first = max(self._position + 1, state.first)
        while first <= state.last:
            fetched = self._link.fetch(self._stream, self._prefix, first, state.last)
            if not fetched.headers:
                break
            for headers, payload in zip(fetched.headers, fetched.payloads, strict=True):
                entry = _ENTRY.search(headers)
                assert entry is not None
                removed = b"KV-Operation: DEL" in headers or b"KV-Operation: PURGE" in headers
                found.append((entry[1].decode()[self._skip :], None if removed else payload))
                first = int(entry[2]) + 1
        self._position = state.last
        return found
