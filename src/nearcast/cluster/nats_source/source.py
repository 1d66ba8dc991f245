"""The Spark data source `nats`: JetStream streams as tables and as streams, and rows published to NATS.

    spark.dataSource.register(NatsSource)
    spark.readStream.format("nats").option("servers", "nats://127.0.0.1:4222").option("stream", "reports").load()

Offsets are the last sequence read of each stream; a partition is a range of sequences of one stream, read with direct
gets, so there is no consumer to create, acknowledge or delete. Options are listed in docs/data-cluster.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nearcast.cluster.datasets.records import RecordReader
from nearcast.cluster.datasets.schema import arrow_schema, required_fields, without_not_null
from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.cluster.nats_source.range_read import COLUMNS, RangeReader, SequenceRange
from nearcast.cluster.nats_source.read_options import ReadOptions, server_list
from nearcast.cluster.nats_source.sink import NatsStreamWriter, NatsWriter
from nearcast.errors import InputError
from nearcast.nats.streams import StreamBounds, StreamError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NatsSource", "NatsStreamReader"]

_log = logging.getLogger(__name__)
# A smaller range is not worth a task of its own.
_SMALLEST_RANGE = 2_000
# Of a micro-batch, by the mean size of a stream's messages: its tasks hold their parts in memory.
_MOST_BYTES = 256 * 1024 * 1024
_HIGHEST = 2**63 - 1
_WILDCARDS = frozenset("*> \t\r\n")
_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


class NatsSource(DataSource):
    """`format("nats")`: read, readStream, write and writeStream."""

    @classmethod
    def name(cls) -> str:
        return "nats"

    def schema(self) -> str:
        ddl = next((value for key, value in self.options.items() if key.lower() == "valueschema"), "")
        # Spark reports a null struct as an error when one of its fields is NOT NULL; the reader checks those itself.
        return f"{COLUMNS}, value STRUCT<{without_not_null(ddl)}>, error STRING" if ddl else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options)
        return FilteredNatsReader(options, schema) if options.push_filters else NatsReader(options, schema)

    def streamReader(self, schema: StructType) -> NatsStreamReader:  # noqa: N802
        return NatsStreamReader(ReadOptions.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> NatsWriter:
        return NatsWriter(server_list(self.options), schema.fieldNames())

    def streamWriter(self, schema: StructType, overwrite: bool) -> NatsStreamWriter:  # noqa: N802
        return NatsStreamWriter(server_list(self.options), schema.fieldNames())


class _Reader:
    """What batch and stream readers share. Spark pickles it for its workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self.ranges = RangeReader(options, _record_reader(schema, options.value_schema))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Without any range, Spark reads one partition of its own, which is empty."""
        return self.ranges.read(partition) if isinstance(partition, SequenceRange) else iter(())

    def _bounds(self) -> dict[str, StreamBounds]:
        connection = connection_to(self._options.servers)
        return {name: connection.bounds(name, self._options.prefix) for name in self._options.streams}

    def _start(self) -> dict[str, int]:
        """By stream the last sequence that is *not* read, as the option says: earliest, latest, a number or JSON."""
        text = self._options.starting
        if text == "earliest":
            return {name: max(bounds.first - 1, 0) for name, bounds in self._bounds().items()}
        if text == "latest":
            return {name: bounds.last for name, bounds in self._bounds().items()}
        try:
            given = json.loads(text)
            if isinstance(given, int):
                given = dict.fromkeys(self._options.streams, given)
            return {name: max(int(given[name]) - 1, 0) for name in self._options.streams}
        except (ValueError, TypeError, KeyError):
            raise InputError(
                f"option startingSequence is {text!r}; allowed: earliest, latest, a sequence, or JSON with one per "
                "stream"
            ) from None


class NatsReader(_Reader, DataSourceReader):
    """All that the streams hold when the query starts."""

    _first, _last = 1, _HIGHEST

    def partitions(self) -> Sequence[SequenceRange]:
        bounds = self._bounds()
        start = {name: max(after, self._first - 1) for name, after in self._start().items()}
        return _split(self._options, start, {name: min(some.last, self._last) for name, some in bounds.items()}, bounds)


class FilteredNatsReader(NatsReader):
    """Reads no more than the conditions on `stream`, `sequence` and `subject` need. Spark applies them all again.

    A class of its own: Spark refuses a reader with `pushFilters` while the setting for it is off."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        for condition in filters:
            if isinstance(condition, _COMPARISONS) and isinstance(condition.value, int):
                if condition.attribute == ("sequence",):
                    self._limit(condition, condition.value)
            elif isinstance(condition, EqualTo | In):
                values = condition.value if isinstance(condition, In) else (condition.value,)
                self._choose(condition.attribute, [value for value in values if isinstance(value, str)])
        return filters

    def _limit(self, condition: Filter, value: int) -> None:
        if isinstance(condition, EqualTo | GreaterThanOrEqual | GreaterThan):
            self._first = max(self._first, value + isinstance(condition, GreaterThan))
        if isinstance(condition, EqualTo | LessThanOrEqual | LessThan):
            self._last = min(self._last, value - isinstance(condition, LessThan))

    def _choose(self, attribute: tuple[str, ...], values: list[str]) -> None:
        options = self._options
        # Which messages of one subject were removed is not known.
        any_subject = not options.subject and not options.fail_on_removed
        if attribute == ("stream",):
            options = replace(options, streams=tuple(name for name in options.streams if name in values))
        elif attribute == ("subject",) and any_subject and len(values) == 1 and _WILDCARDS.isdisjoint(values[0]):
            options = replace(options, subject=values[0])
        self._options, self.ranges = options, RangeReader(options, self.ranges.records)


class NatsStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of what came since the last one."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._until: dict[str, int] | None = None
        self._known: dict[str, StreamBounds] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return self._start()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._latest()

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """As this batch saw it: another request would cost every batch a round trip."""
        return {name: bounds.last for name, bounds in self._known.items()} or self._latest()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        latest = self._latest() if self._until is None else self._until
        left = None if isinstance(limit, ReadAllAvailable) else getattr(limit, "max_rows", self._options.max_rows)
        end = dict(start)
        for position, name in enumerate(sorted(latest)):
            # The rest of the limit is shared among the streams still to come, so that none waits for a busier one.
            new = max(latest[name] - start.get(name, 0), 0)
            if left is not None:
                share = max(left // (len(latest) - position), 1 if left else 0)
                mean = self._known[name].mean_bytes if name in self._known else 0
                new = min(new, share, max(_MOST_BYTES // len(latest) // max(mean, 1), 1))
                left -= new
            end[name] = start.get(name, 0) + new
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[SequenceRange]:
        if any(name not in self._known or self._known[name].last < last for name, last in end.items()):
            self._latest()
        return _split(self._options, start, end, self._known)

    def _latest(self) -> dict[str, int]:
        self._known = self._bounds()
        return {name: bounds.last for name, bounds in self._known.items()}


def _split(
    options: ReadOptions, start: Mapping[str, int], end: Mapping[str, int], known: Mapping[str, StreamBounds]
) -> list[SequenceRange]:
    """Split what lies between two offsets among tasks; note what retention has removed meanwhile.

    known: bounds of the streams a moment ago. Tasks notice what was removed since then.
    """
    found: list[SequenceRange] = []
    for name in options.streams:
        first, last = start.get(name, 0) + 1, end.get(name, 0)
        if first > last:
            continue
        bounds = known[name]
        if bounds.last < last:
            raise StreamError(
                f"stream {name} ends at sequence {bounds.last}, but {last} was read before: was the stream deleted and "
                "created again? Remove the checkpoint to start over"
            )
        removed = max(min(bounds.first - 1, last) - first + 1, 0)
        if removed:
            problem = f"stream {name}: {removed} messages from sequence {first} on were removed before they were read"
            if options.fail_on_removed:
                raise StreamError(problem)
            _log.warning("%s", problem)
        first += removed
        pieces = max(min(options.partitions, (last - first + 1) // _SMALLEST_RANGE), 1)
        edges = [first + (last - first + 1) * n // pieces for n in range(pieces + 1)]
        found += [SequenceRange(name, edges[n], edges[n + 1] - 1, 0 if n else removed) for n in range(pieces)]
    return found


def _record_reader(schema: StructType, ddl: str) -> RecordReader | None:
    if not ddl:
        return None
    required = required_fields(ddl)
    fields = [field.with_nullable(field.name not in required) for field in arrow_schema(schema["value"].dataType)]
    return RecordReader(pa.schema(fields))
