"""Stored messages as Arrow columns: what `parse_entry` does, for many messages at once (a microsecond per message)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from nearcast.nats.streams import RawBatch

__all__ = ["entry_columns"]

# The fields that a store adds to a message, always in this order.
_STORED = (
    r"(?s)\r\nNats-Subject: (?P<subject>[^\r]*)\r\nNats-Sequence: (?P<sequence>\d+)\r\nNats-Time-Stamp: (?P<time>[^Z]*)"
)
_ID = r"(?s)\r\nNats-Msg-Id: (?P<id>[^\r]*)\r\n"


def entry_columns(batch: RawBatch) -> dict[str, pa.Array]:
    """The columns sequence, subject, time, id and payload."""
    headers = pa.array(batch.headers, pa.binary()).cast(pa.string(), safe=False)
    stored = pc.extract_regex(headers, _STORED)
    # The server writes up to nine digits of a second; microseconds are kept.
    times = pc.utf8_slice_codeunits(pc.struct_field(stored, "time"), 0, 26)
    return {
        "sequence": pc.struct_field(stored, "sequence").cast(pa.int64()),
        "subject": pc.struct_field(stored, "subject"),
        "time": pc.cast(times, pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
        "id": pc.struct_field(pc.extract_regex(headers, _ID), "id"),
        "payload": pa.array(batch.payloads, pa.binary()),
    }
