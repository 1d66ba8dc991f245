"""The Spark data source `nats`: JetStream streams as tables and as streams, and rows published to NATS.

    spark.dataSource.register(NatsSource)
    spark.readStream.format("nats").option("servers", "nats://127.0.0.1:4222").option("stream", "reports").load()

Offsets are the last sequence read of each stream; a partition is a range of sequences of one stream, read with direct
gets, so there is no consumer to create, acknowledge or forget. Options are listed in docs/data-cluster.md.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nearcast.cluster.fetch import Link, StreamState, link_to
from nearcast.cluster.records import RecordReader, arrow_schema, required_fields
from nearcast.cluster.sink import NatsStreamWriter, NatsWriter
from nearcast.errors import InputError
from nearcast.nats.streams import RawBatch, StreamError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NatsSource", "Range", "ReadSettings"]

_log = logging.getLogger(__name__)
_COLUMNS = "stream STRING, sequence BIGINT, subject STRING, time TIMESTAMP, id STRING, payload BINARY, removed BIGINT"
_OPTIONS = (
    "servers", "stream", "domain", "subject", "startingSequence", "maxRowsPerBatch", "partitions", "valueSchema",
    "failOnRemoved", "path",
)  # fmt: skip
# A range smaller than this is not worth a task of its own.
_SMALLEST_RANGE = 2_000
# The fields that a store adds to a message, always in this order. RE2 takes a row apart in about a microsecond.
_STORED = (
    r"(?s)\r\nNats-Subject: (?P<subject>[^\r]*)\r\nNats-Sequence: (?P<sequence>\d+)\r\nNats-Time-Stamp: (?P<time>[^Z]*)"
)
_ID = r"(?s)\r\nNats-Msg-Id: (?P<id>[^\r]*)\r\n"


@dataclass(frozen=True)
class ReadSettings:
    """The options of a read, checked."""

    servers: tuple[str, ...]
    streams: tuple[str, ...]
    prefix: str
    subject: str
    starting: str
    max_rows: int
    partitions: int
    fail_on_removed: bool

    @staticmethod
    def of(options: Mapping[str, str]) -> ReadSettings:
        """Check the options; InputError names the one that is wrong."""
        given = {key.lower(): value for key, value in options.items()}
        known = {name.lower() for name in _OPTIONS}
        for name in given:
            if name not in known:
                raise InputError(f"option {name!r} of the nats source is unknown; allowed: {', '.join(_OPTIONS)}")
        streams = tuple(part.strip() for part in given.get("stream", "").split(",") if part.strip())
        if not streams:
            raise InputError("option stream of the nats source is missing: one stream or several with commas between")
        domain = given.get("domain", "")
        return ReadSettings(
            servers=server_list(given),
            streams=streams,
            prefix=f"$JS.{domain}.API" if domain else "$JS.API",
            subject=given.get("subject", ""),
            starting=given.get("startingsequence", "earliest"),
            max_rows=_whole(given, "maxrowsperbatch", 100_000),
            partitions=_whole(given, "partitions", 2),
            fail_on_removed=_yes(given, "failonremoved", False),
        )


@dataclass
class Range(InputPartition):
    """The messages first ≤ sequence ≤ last of a stream. `removed`: so many before `first` are gone."""

    stream: str
    first: int
    last: int
    removed: int = 0


class NatsSource(DataSource):
    """`format("nats")`: read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "nats"

    def schema(self) -> str:
        given = {key.lower(): value for key, value in self.options.items()}
        # Spark takes a null value for a fault when one of its fields may not be null; the reader checks those itself.
        value = re.sub(r"\s+NOT\s+NULL\b", "", given.get("valueschema", ""), flags=re.IGNORECASE)
        return f"{_COLUMNS}, value STRUCT<{value}>, error STRING" if value else _COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        return NatsReader(ReadSettings.of(self.options), _record_reader(schema, self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return NatsStreamReader(ReadSettings.of(self.options), _record_reader(schema, self.options))

    def writer(self, schema: StructType, overwrite: bool) -> NatsWriter:
        return NatsWriter(server_list(self.options), schema.fieldNames())

    def streamWriter(self, schema: StructType, overwrite: bool) -> NatsStreamWriter:  # noqa: N802
        return NatsStreamWriter(server_list(self.options), schema.fieldNames())


class NatsReader(DataSourceReader):
    """All that the streams hold when the query starts."""

    def __init__(self, settings: ReadSettings, records: RecordReader | None) -> None:
        self._settings, self._records = settings, records

    def partitions(self) -> Sequence[Range]:
        link = link_to(self._settings.servers)
        start = starting_offsets(link, self._settings)
        end = {name: link.state(name, self._settings.prefix).last for name in self._settings.streams}
        return ranges(link, self._settings, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(self._settings, self._records, partition)


class NatsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of what came since the last one."""

    def __init__(self, settings: ReadSettings, records: RecordReader | None) -> None:
        self._settings, self._records = settings, records
        self._until: dict[str, int] | None = None
        self._states: dict[str, StreamState] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return starting_offsets(link_to(self._settings.servers), self._settings)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._settings.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._latest()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """As this batch saw it: to ask again would cost every batch a round trip."""
        return {name: state.last for name, state in self._states.items()} or self._latest()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        latest = self._latest() if self._until is None else self._until
        left = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._settings.max_rows)
        end = dict(start)
        for position, name in enumerate(sorted(latest)):
            # What is left is shared among the streams still to come, so that none waits for a busier one.
            new = max(latest[name] - start.get(name, 0), 0)
            if left is not None:
                share = max(left // (len(latest) - position), 1 if left else 0)
                new = min(new, share)
                left -= new
            end[name] = start.get(name, 0) + new
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        return ranges(link_to(self._settings.servers), self._settings, start, end, self._states)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return read_range(self._settings, self._records, partition)

    def _latest(self) -> dict[str, int]:
        link = link_to(self._settings.servers)
        self._states = {name: link.state(name, self._settings.prefix) for name in self._settings.streams}
        return {name: state.last for name, state in self._states.items()}


def starting_offsets(link: Link, settings: ReadSettings) -> dict[str, int]:
    """The last sequence that is *not* read, by stream, as the option says: earliest, latest, a number or JSON."""
    text = settings.starting.strip()
    if text == "earliest":
        return {name: max(link.state(name, settings.prefix).first - 1, 0) for name in settings.streams}
    if text == "latest":
        return {name: link.state(name, settings.prefix).last for name in settings.streams}
    try:
        given = json.loads(text)
        if isinstance(given, int):
            given = dict.fromkeys(settings.streams, given)
        return {name: max(int(given[name]) - 1, 0) for name in settings.streams}
    except (ValueError, TypeError, KeyError):
        raise InputError(
            f"option startingSequence is {text!r}; allowed: earliest, latest, a sequence, or JSON with one per stream"
        ) from None


def ranges(
    link: Link,
    settings: ReadSettings,
    start: Mapping[str, int],
    end: Mapping[str, int],
    known: Mapping[str, StreamState] | None = None,
) -> list[Range]:
    """Split what lies between two offsets among tasks; note what retention has removed meanwhile.

    known: states of the streams a moment ago, which do if they reach as far. What was removed since then the tasks see.
    """
    found: list[Range] = []
    for name in settings.streams:
        first, last = start.get(name, 0) + 1, end.get(name, 0)
        if first > last:
            continue
        state = known.get(name) if known else None
        if state is None or state.last < last:
            state = link.state(name, settings.prefix)
        if state.last < last:
            raise StreamError(
                f"stream {name} ends at sequence {state.last}, but {last} was read before: was it made anew? "
                "Remove the checkpoint to start over"
            )
        removed = max(min(state.first - 1, last) - first + 1, 0)
        if removed:
            problem = f"stream {name}: {removed} messages from sequence {first} on were removed before they were read"
            if settings.fail_on_removed:
                raise StreamError(problem)
            _log.warning("%s", problem)
        first += removed
        pieces = max(min(settings.partitions, (last - first + 1) // _SMALLEST_RANGE), 1)
        bounds = [first + (last - first + 1) * n // pieces for n in range(pieces + 1)]
        found += [Range(name, bounds[n], bounds[n + 1] - 1, 0 if n else removed) for n in range(pieces)]
    return found


def read_range(settings: ReadSettings, records: RecordReader | None, part: Range) -> Iterator[pa.RecordBatch]:
    """The rows of a range. A gap is a row without payload that says how many messages are `removed`."""
    link = link_to(settings.servers)
    position = part.first
    if part.removed:
        yield _removed_row(settings, records, part.stream, part.first - 1, part.removed)
    fetching = _start(link, settings, part, position)
    while fetching is not None:
        fetched: RawBatch = fetching.result()
        if not fetched.payloads:
            break
        rows = message_rows(part.stream, fetched)
        sequences = rows["sequence"]
        behind = int(sequences[-1].as_py())
        fetching = _start(link, settings, part, behind + 1)  # the next is on its way while these are read
        if behind > part.last:
            keep = int(pc.sum(pc.less_equal(sequences, part.last)).as_py() or 0)
            rows = {name: column[:keep] for name, column in rows.items()}
            behind, fetching = part.last, None
        if not settings.subject:
            yield from _gaps(settings, records, part.stream, position, rows["sequence"], behind)
        if len(rows["sequence"]):
            yield _batch(records, rows)
        position = behind + 1
    if not settings.subject and position <= part.last:
        yield _removed_row(settings, records, part.stream, part.last, part.last - position + 1)


def message_rows(stream: str, fetched: RawBatch) -> dict[str, pa.Array]:
    """Columns of the messages as they came."""
    headers = pa.array(fetched.headers, pa.binary()).cast(pa.string(), safe=False)
    stored = pc.extract_regex(headers, _STORED)
    ids = pc.struct_field(pc.extract_regex(headers, _ID), "id")
    # The server writes up to nine digits of a second; microseconds are kept.
    times = pc.utf8_slice_codeunits(pc.struct_field(stored, "time"), 0, 26)
    count = len(fetched.payloads)
    return {
        "stream": pa.array([stream] * count, pa.string()),
        "sequence": pc.struct_field(stored, "sequence").cast(pa.int64()),
        "subject": pc.struct_field(stored, "subject"),
        "time": pc.cast(times, pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
        "id": ids,
        "payload": pa.array(fetched.payloads, pa.binary()),
        "removed": pa.array([0] * count, pa.int64()),
    }


def server_list(options: Mapping[str, str]) -> tuple[str, ...]:
    """The addresses in the option `servers`."""
    given = next((value for key, value in options.items() if key.lower() == "servers"), "nats://127.0.0.1:4222")
    return tuple(part.strip() for part in given.split(",") if part.strip())


def _start(link: Link, settings: ReadSettings, part: Range, first: int) -> Any:
    if first > part.last:
        return None
    return link.start_fetch(part.stream, settings.prefix, first, part.last, settings.subject)


def _gaps(
    settings: ReadSettings, records: RecordReader | None, stream: str, position: int, sequences: pa.Array, behind: int
) -> Iterator[pa.RecordBatch]:
    if behind - position + 1 == len(sequences):
        return
    expected = position
    for sequence in sequences.to_pylist():
        if sequence > expected:
            yield _removed_row(settings, records, stream, sequence - 1, sequence - expected)
        expected = sequence + 1
    if behind >= expected:
        yield _removed_row(settings, records, stream, behind, behind - expected + 1)


def _removed_row(
    settings: ReadSettings, records: RecordReader | None, stream: str, last: int, count: int
) -> pa.RecordBatch:
    problem = f"stream {stream}: {count} messages up to sequence {last} were removed before they were read"
    if settings.fail_on_removed:
        raise StreamError(problem)
    rows = {
        "stream": pa.array([stream]),
        "sequence": pa.array([last], pa.int64()),
        "subject": pa.nulls(1, pa.string()),
        "time": pa.nulls(1, pa.timestamp("us", "UTC")),
        "id": pa.nulls(1, pa.string()),
        "payload": pa.nulls(1, pa.binary()),
        "removed": pa.array([count], pa.int64()),
    }
    if records is not None:
        rows["value"] = pa.nulls(1, pa.struct([field.with_nullable(True) for field in records.schema]))
        rows["error"] = pa.array([problem.partition(": ")[2]])
    return pa.RecordBatch.from_arrays(list(rows.values()), names=list(rows))


def _batch(records: RecordReader | None, rows: dict[str, pa.Array]) -> pa.RecordBatch:
    columns = dict(rows)
    if records is not None:
        columns["value"], columns["error"] = records.read(columns["payload"].to_pylist())
        # The payload of a record that was read is not needed again; it would double what Spark carries around.
        columns["payload"] = pc.if_else(pc.is_valid(columns["error"]), columns["payload"], pa.scalar(None, pa.binary()))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _record_reader(schema: StructType, options: Mapping[str, str]) -> RecordReader | None:
    ddl = next((value for key, value in options.items() if key.lower() == "valueschema"), "")
    if not ddl:
        return None
    required = required_fields(ddl)
    fields = [field.with_nullable(field.name not in required) for field in arrow_schema(schema["value"].dataType)]
    return RecordReader(pa.schema(fields))


def _whole(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"option {name} of the nats source is {text!r}; a whole number, at least 1, is needed")
    return int(text)


def _yes(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InputError(f"option {name} of the nats source is {text!r}; allowed: true, false")
    return text == "true"
