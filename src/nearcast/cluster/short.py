"""Short micro-batches are read by the driver itself: for some hundred records a Spark job takes ten times as long.

It is the same data source, run here instead of in a task. Which records belong to a batch is Spark's decision: it notes
the end of each batch in its checkpoint before the batch begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql.datasource import InputPartition

from nearcast.cluster.records import parse_ddl
from nearcast.cluster.source import NatsSource, Range

__all__ = ["ShortBatches"]

# More than these are worth tasks.
_SHORT = 4_000


class ShortBatches:
    """The short batches of one query over one stream. options: those of its source; checkpoint: its folder or URI."""

    def __init__(self, options: Mapping[str, str], checkpoint: str) -> None:
        source = NatsSource(dict(options))
        self._stream, self._filtered = options["stream"], "subject" in options
        self._reader = source.streamReader(parse_ddl(source.schema(), "nats"))
        if "://" in checkpoint:
            self._fs, self._folder = pafs.FileSystem.from_uri(checkpoint)
        else:
            self._fs, self._folder = pafs.LocalFileSystem(), checkpoint

    def read(self, batch: int, after: int) -> pa.Table | None:
        """The messages of a batch, which begins after a sequence; nothing when it is not short, or not known here."""
        end = self._end(batch)
        if end is None or not after < end <= after + _SHORT:
            return None
        parts: Sequence[InputPartition] = [Range(self._stream, after + 1, end)]
        if self._filtered:  # then only the stream's state tells what was removed
            parts = self._reader.partitions({self._stream: after}, {self._stream: end})
        rows = [rows for part in parts for rows in self._reader.read(part)]
        return pa.Table.from_batches(rows) if rows else None

    def _end(self, batch: int) -> int | None:
        """From Spark's note: a version, a line about the batch, and a line with the last sequence of each stream."""
        try:
            with self._fs.open_input_file(f"{self._folder}/offsets/{batch}") as file:
                return int(json.loads(file.read().decode().splitlines()[-1])[self._stream])
        except (OSError, ValueError, KeyError, TypeError):  # written another way: then the batch is read in tasks
            return None
