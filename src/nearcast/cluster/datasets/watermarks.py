"""How far each source of a dataset has come, so that late records can be told.

A source is a publisher, by the stamp of its records. It is late when it falls behind *itself*: one device with a wrong
clock, or one that was offline, does not make the records of others late. A time in the future counts as the time of
arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Watermarks", "sources_of"]

# Beyond this many sources, those that have come least far are forgotten; what they send next is not late.
_MOST_SOURCES = 4_096
_PUBLISHER = r"^(?P<publisher>[^:~]+)(?:~[0-9a-z]+)?:[^:]*:\d+:"


@dataclass(frozen=True)
class Watermarks:
    """The latest time of each source, in microseconds."""

    latest: Mapping[str, int] = field(default_factory=dict)

    def behind(self, sources: pa.Array, times: pa.Array) -> pa.Array:
        """By how many microseconds each record is behind its source; 0 for the first records of a source."""
        encoded = sources.dictionary_encode()
        known = pa.array([self.latest.get(name) for name in encoded.dictionary.to_pylist()], pa.int64())
        behind = pc.subtract(known.take(encoded.indices), times.cast(pa.int64()))
        return pc.max_element_wise(pc.fill_null(behind, 0), 0)

    def advanced(self, sources: pa.Array, times: pa.Array, arrived: pa.Array) -> Watermarks:
        """The watermarks after these records."""
        if not len(sources):
            return self
        seen = pc.min_element_wise(times.cast(pa.int64()), arrived.cast(pa.int64()))
        rows = pa.table({"source": sources, "seen": seen}).group_by("source").aggregate([("seen", "max")])
        return self.joined(dict(zip(rows["source"].to_pylist(), rows["seen_max"].to_pylist(), strict=True)))

    def joined(self, other: Mapping[str, int]) -> Watermarks:
        """The later of both for each source."""
        latest = dict(self.latest)
        for source, seen in other.items():
            latest[source] = max(seen, latest.get(source, seen))
        if len(latest) > _MOST_SOURCES:
            latest = dict(sorted(latest.items(), key=lambda item: item[1])[-_MOST_SOURCES:])
        return Watermarks(latest)


def sources_of(ids: pa.Array) -> pa.Array:
    """The publisher of each record, from its id; all records without a stamp have one source."""
    found = pc.struct_field(pc.extract_regex(ids, _PUBLISHER), "publisher")
    return pc.fill_null(found, "")
