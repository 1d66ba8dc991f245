"""Publishes rows to NATS. With deterministic ids a replayed micro-batch is stored once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.errors import InputError

__all__ = ["NatsStreamWriter", "NatsWriter", "PublishedCounts"]


@dataclass
class PublishedCounts(WriterCommitMessage):
    """What one task has published; `duplicates` of them the stream had already."""

    messages: int
    duplicates: int


class _Publisher:
    """Publishes the columns subject, payload and, where there is one, id. Every message is acknowledged by a stream."""

    def __init__(self, servers: Sequence[str], columns: Sequence[str]) -> None:
        missing = {"subject", "payload"} - set(columns)
        if missing:
            have = ", ".join(columns)
            raise InputError(f"the nats sink needs the columns subject and payload (id is optional); there are: {have}")
        self._servers = tuple(servers)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedCounts:
        connection = connection_to(self._servers)
        messages = duplicates = 0
        for batch in iterator:
            subjects = batch.column("subject").to_pylist()
            payloads = batch.column("payload").to_pylist()
            ids = batch.column("id").to_pylist() if "id" in batch.schema.names else [""] * len(subjects)
            rows = [
                (subject, message_id or "", payload if isinstance(payload, bytes) else (payload or "").encode())
                for subject, message_id, payload in zip(subjects, ids, payloads, strict=True)
            ]
            duplicates += connection.publish(rows)
            messages += len(rows)
        return PublishedCounts(messages, duplicates)


class NatsWriter(_Publisher, DataSourceArrowWriter):
    """`df.write.format("nats")`."""


class NatsStreamWriter(_Publisher, DataSourceStreamArrowWriter):
    """`df.writeStream.format("nats")`."""
