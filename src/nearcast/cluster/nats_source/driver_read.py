"""Reads short micro-batches in the driver: for some hundred records a Spark job takes ten times as long. Long ones are
divided among executors.

It is the same data source, run here instead of in a task. Spark decides which records belong to a batch: it writes the
end offset of each batch to its checkpoint before the batch begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.fs as pafs

from nearcast.cluster.datasets.schema import parse_ddl
from nearcast.cluster.nats_source.range_read import RangeReader, SequenceRange
from nearcast.cluster.nats_source.source import NatsSource

__all__ = ["DriverReader"]

# A batch of more messages is read by tasks.
_MOST = 4_000


class DriverReader:
    """Reads batches of one query over one stream. options: of its source; checkpoint: its folder or URI."""

    def __init__(self, options: Mapping[str, str], checkpoint: str) -> None:
        source = NatsSource(dict(options))
        self._stream, self._filtered = options["stream"], "subject" in options
        self._reader = source.streamReader(parse_ddl(source.schema(), "nats"))
        if "://" in checkpoint:
            self._fs, self._folder = pafs.FileSystem.from_uri(checkpoint)
        else:
            self._fs, self._folder = pafs.LocalFileSystem(), checkpoint
        self._known: tuple[int, int] | None = None

    def read(self, batch: int, after: int) -> pa.Table | None:
        """The messages of a batch that starts after a sequence; None if it is long, or its end cannot be read."""
        end = self._end(batch)
        if end is None or not after < end <= after + _MOST:
            return None
        parts: Sequence[SequenceRange] = [SequenceRange(self._stream, after + 1, end)]
        if self._filtered:  # removed messages are only visible in the stream's bounds
            parts = self._reader.partitions({self._stream: after}, {self._stream: end})
        rows = [rows for part in parts for rows in self._reader.read(part)]
        return pa.Table.from_batches(rows) if rows else None

    def long_batch(self, batch: int, after: int) -> tuple[Sequence[SequenceRange], int] | None:
        """The ranges of a long batch that starts after a sequence, and its end; None if it is short or has no end."""
        end = self._end(batch)
        if end is None or end <= after + _MOST:
            return None
        return self._reader.partitions({self._stream: after}, {self._stream: end}), end

    @property
    def ranges(self) -> RangeReader:
        """Reads ranges, wherever it is sent."""
        return self._reader.ranges

    def read_range(self, first: int, last: int) -> pa.Table | None:
        """The messages first ≤ sequence ≤ last."""
        rows = list(self._reader.read(SequenceRange(self._stream, first, last)))
        return pa.Table.from_batches(rows) if rows else None

    def answered(self) -> int:
        """The last sequence of the batches that Spark has noted as complete; 0 without a checkpoint."""
        selector = pafs.FileSelector(f"{self._folder}/commits", allow_not_found=True)
        try:
            batches = [int(info.base_name) for info in self._fs.get_file_info(selector) if info.base_name.isdigit()]
        except OSError:
            return 0
        return (self._end(max(batches)) or 0) if batches else 0

    def _end(self, batch: int) -> int | None:
        """From Spark's offset log: a version, a line of metadata, and a line with the last sequence of each stream."""
        if self._known is not None and self._known[0] == batch:
            return self._known[1]
        try:
            with self._fs.open_input_file(f"{self._folder}/offsets/{batch}") as file:
                end = int(json.loads(file.read().decode().splitlines()[-1])[self._stream])
        except (OSError, ValueError, KeyError, TypeError):  # another format: the batch is read by tasks
            return None
        self._known = batch, end  # Spark does not change it
        return end
