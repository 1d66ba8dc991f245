"""Stored messages as Arrow columns: what `parse_entry` does, for many messages at once (a microsecond per message)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.nats.subjects import subject_text

if TYPE_CHECKING:
    from nearcast.nats.streams import RawBatch

__all__ = ["entry_columns"]

# The fields that a store adds to a message, always in this order, and always last: a publisher may write them, too.
_STORED = (
    r"Nats-Stream: [^\r]*\r\nNats-Subject: (?P<subject>[^\r]*)\r\nNats-Sequence: (?P<sequence>\d+)\r\n"
    r"Nats-Time-Stamp: (?P<time>[^\rZ]*)[^\r]*(?:\r\nNats-(?:Num-Pending|Last-Sequence): \d+)*\r\n\r\n\z"
)
_ID = r"\r\nNats-Msg-Id: (?P<id>[^\r]*)\r\n"


def entry_columns(batch: RawBatch) -> dict[str, pa.Array]:
    """The columns sequence, subject, time, id and payload."""
    headers = pa.array(batch.headers, pa.binary())
    stored = pc.extract_regex(headers, _STORED)
    # The server writes up to nine digits of a second; microseconds are kept.
    times = pc.utf8_slice_codeunits(_text(pc.struct_field(stored, "time")), 0, 26)
    return {
        "sequence": _text(pc.struct_field(stored, "sequence")).cast(pa.int64()),
        "subject": _text(pc.struct_field(stored, "subject")),
        "time": pc.cast(times, pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
        "id": _text(pc.struct_field(pc.extract_regex(headers, _ID), "id")),
        "payload": pa.array(batch.payloads, pa.binary()),
    }


def _text(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:  # a broker does not check that subjects and ids are UTF-8
        return pa.array([None if one is None else subject_text(one) for one in values.to_pylist()], pa.string())
