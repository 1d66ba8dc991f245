"""Results: stored before they are published, so that each is published once, whichever process is killed between."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.nats import message_spans, subjects
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.streams import StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.cluster.nats_source.blocking_connection import BlockingConnection
    from nearcast.nats.stream_publisher import OutgoingMessage

__all__ = [
    "ACKNOWLEDGED_WITHIN",
    "RESULTS",
    "ResultLog",
    "group_results",
    "messages_by_channel",
    "result_ids",
]

_log = logging.getLogger(__name__)
_LARGEST = 512 << 10
ACKNOWLEDGED_WITHIN = 5.0
"""Seconds after which it is looked up which results a stream holds: it may be slow, or away for a moment."""
_LONGEST_ATTEMPT, _LOOKED_UP_WITHIN = 20.0, 120.0
# From this many results on, executors publish those of a long micro-batch.
_BY_TASKS = 5_000

_TIME, _TEXT, _FIRST = pa.timestamp("us", "UTC"), pa.large_string(), pa.scalar(0, pa.int32())

RESULTS = pa.schema(
    [
        ("channel", pa.string()),
        ("key", pa.string()),
        ("execution", pa.int64()),
        ("at", _TIME),
        ("part", pa.int32()),
        ("payload", _TEXT),
    ]
)
_PARTS = pa.schema([("channel", pa.string()), ("key", pa.string()), ("part", pa.int32()), ("rows", _TEXT)])


@dataclass(frozen=True)
class StoredResults:
    """Results on disk. metadata: the positions of their channels' streams before any was published, and more.

    recovered: stored by a run that did not finish; some of them may be published already. path: of their file.
    """

    table: pa.Table
    metadata: dict[str, Any]
    recovered: bool
    path: str = ""

    @property
    def positions(self) -> dict[str, int]:
        return dict(self.metadata.get("positions", {}))


def group_results(rows: pa.Table, execution: int, at_us: int, first: int = 0) -> pa.Table:
    """One result for each subscription from rows (channel, key, row as JSON, position); a large one in several parts.

    at_us: the time of the results. It is part of their ids, so it must follow from the execution, not from a clock: a
    repeated execution has the same ids, on either lane.
    position: where the query orders its rows, the place of each within its result.
    first: the sequence of the first record that is new to a continuous channel; `execution` is that of the last one.
    """
    if pc.any(pc.is_valid(rows["position"])).as_py():
        rows = rows.take(pc.sort_indices(rows, [("position", "ascending")]))
    rows = rows.select(["channel", "key"]).append_column("row", rows["row"].cast(_TEXT))
    found = rows.group_by(["channel", "key"], use_threads=False).aggregate([("row", "list")])  # threads mix the rows
    joined = pc.binary_join(found["row_list"], pa.scalar(",", _TEXT))
    whole = pa.table([found["channel"], found["key"], pa.repeat(_FIRST, found.num_rows), joined], schema=_PARTS)
    large = pc.greater(pc.binary_length(joined), _LARGEST)
    cut = [
        {"channel": row["channel"], "key": row["key"], "part": part, "rows": ",".join(some)}
        for row in found.filter(large).to_pylist()
        for part, some in enumerate(_parts(row["row_list"]))
    ]
    parts = pa.concat_tables([whole.filter(pc.invert(large)), pa.Table.from_pylist(cut, _PARTS)])
    channel, key = (parts[name].cast(_TEXT) for name in ("channel", "key"))
    new = f'"first":{first},' if first else ""
    between = ('{"channel":"', '","key":"', f'","execution":{execution},{new}"rows":[', "]}", "")
    start, to_key, to_rows, end, nothing = (pa.scalar(text, _TEXT) for text in between)
    payload = pc.binary_join_element_wise(start, channel, to_key, key, to_rows, parts["rows"], end, nothing)
    executions, times = (pa.repeat(pa.scalar(value, pa.int64()), len(parts)) for value in (execution, at_us))
    columns = [parts["channel"], parts["key"], executions, times.cast(_TIME), parts["part"], payload]
    return pa.table(columns, schema=RESULTS)


class ResultLog:
    """The results of one producer (the continuous channels of a dataset, or one scheduled channel), stored by day."""

    def __init__(self, warehouse: Warehouse, connection: BlockingConnection, producer: str, prefix: str) -> None:
        self._warehouse, self._connection, self._prefix = warehouse, connection, prefix
        self.folder = warehouse.folder("results", producer)
        self._positions: dict[str, int] = {}

    def stored(self, number: int) -> StoredResults | None:
        """What was stored under this number before, by a run that did not finish."""
        for span in self._warehouse.files(self.folder):
            if span.high == number and not span.merged:
                table = self._warehouse.read(span)
                return StoredResults(table, self._warehouse.metadata(table), True)
        return None

    def next_number(self, number: int) -> int | None:
        """The number of the results that were stored after these, if any."""
        later = [span.high for span in self._warehouse.files(self.folder) if span.high > number and not span.merged]
        return min(later, default=None)

    def store(self, number: int, table: pa.Table, metadata: Mapping[str, Any] | None = None) -> StoredResults:
        """Store results. These are published from now on, even if subscriptions change meanwhile."""
        positions = {name: self._position(name) for name in table["channel"].unique().to_pylist()}
        noted = {"positions": positions, **(metadata or {})}
        path = ""
        if table.num_rows:
            day = table["at"][0].as_py().strftime("%Y-%m-%d")
            path = self._warehouse.write(f"{self.folder}/day={day}", number, table, noted)
        return StoredResults(table, noted, False, path)

    def publish(self, stored: StoredResults, tasks: Callable[[str, pa.Table], None] | None = None) -> int:
        """Publish those that are not published yet; returns how many. tasks: publishes very many, from their file."""
        if tasks is not None and stored.table.num_rows >= _BY_TASKS and not stored.recovered:
            tasks(stored.path, stored.table)
            return self._complete(stored)
        table, waiting = stored.table, messages_by_channel(stored.table)
        published = 0
        for channel, messages in waiting.items():
            position = stored.positions[channel]
            if not stored.recovered:
                published += len(messages)
                last = self._publish_in_order(channel, messages)
                if last == position + len(messages):
                    self._positions[channel] = last
                    continue  # the usual case: all are in the stream, and nothing else is
                if last is not None:  # some were dropped, or the stream was created again
                    position = max(min(position, last - len(messages)), 0)
                self._publish_missing(channel, messages, position)
                continue
            published += self._publish_missing(channel, messages, position)
        if stored.recovered:
            _log.info("recovered %d results, published %d that were missing", table.num_rows, published)
        return published

    def _publish_in_order(self, channel: str, messages: Sequence[OutgoingMessage]) -> int | None:
        """The last sequence; None when the store or the broker has gone away, and it is not known what is stored."""
        try:
            return self._connection.publish_in_order(messages, ACKNOWLEDGED_WITHIN)
        except (StreamError, ConnectionLostError) as error:
            _log.warning(
                "results of channel %s: %s; those that the stream does not hold are published again", channel, error
            )
            return None

    def _complete(self, stored: StoredResults) -> int:
        """Publish what streams did not take from tasks; returns how many all are."""
        for row in stored.table["channel"].value_counts().to_pylist():
            channel, count = row["values"], row["counts"]
            last = self._connection.bounds(subjects.channel_stream(channel), self._prefix).last
            self._positions[channel] = last
            if last != (position := stored.positions[channel]) + count:
                messages = messages_by_channel(stored.table.filter(pc.equal(stored.table["channel"], channel)))
                self._publish_missing(channel, messages[channel], max(min(position, last - count), 0))
        return int(stored.table.num_rows)

    def _publish_missing(self, channel: str, messages: Sequence[tuple[str, str, bytes]], position: int) -> int:
        """Publish those whose ids the stream does not hold from a position on; returns how many."""
        count, attempt = 0, ACKNOWLEDGED_WITHIN
        while True:
            known = self._published(channel, position)
            missing = [message for message in messages if message[1] not in known]
            count = count or len(missing)
            try:
                if missing:
                    self._connection.publish(missing, attempt)
                break
            except (StreamError, ConnectionLostError):
                if attempt > _LONGEST_ATTEMPT:
                    raise
                attempt *= 2
        self._positions.pop(channel, None)
        return count

    def tidy(self, oldest_day: str) -> None:
        """Merge small files and delete the days before `oldest_day`."""
        self._warehouse.merge(self.folder)
        self._warehouse.delete_days(self.folder, oldest_day)

    def _position(self, channel: str) -> int:
        """The last sequence of a channel's stream; only this driver publishes there."""
        if channel not in self._positions:
            self._positions[channel] = self._connection.bounds(subjects.channel_stream(channel), self._prefix).last
        return self._positions[channel]

    def _published(self, channel: str, position: int) -> set[str]:
        """The ids that a stream holds after a position; a store forgets ids for deduplication much earlier."""
        reader, stream = self._connection.reader(self._prefix), subjects.channel_stream(channel)
        last = self._connection.bounds(stream, self._prefix).last
        pattern = subjects.channel_results(channel, "*")
        entries = self._connection.ask(
            lambda: reader.read_range(stream, pattern, position + 1, last + 1), _LOOKED_UP_WITHIN
        )
        return {entry.id.decode() for entry in entries if entry.id}


def messages_by_channel(results: pa.Table) -> dict[str, list[OutgoingMessage]]:
    """Results as messages for the streams of their channels."""
    found: dict[str, list[OutgoingMessage]] = {}
    columns = [results[name] for name in ("channel", "key", "execution", "at", "part", "payload")]
    columns[3] = columns[3].cast(pa.int64())
    for channel, key, execution, at, part, payload in zip(*(column.to_pylist() for column in columns), strict=True):
        subject, number = subjects.channel_results(channel, key), _result_id(channel, key, at, execution, part)
        found.setdefault(channel, []).append((subject, number, payload.encode()))
    return found


def result_ids(results: pa.Table) -> list[tuple[str, bytes]]:
    """Channel and id of the first results; a trace has no more links."""
    messages = messages_by_channel(results.slice(0, message_spans.MOST_LINKS))
    return [(channel, number.encode()) for channel, some in messages.items() for _, number, _ in some]


def _result_id(channel: str, key: str, at_us: int, execution: int, part: int) -> str:
    """The id of a result, or of a part of it: a stamp, which has no clock in it."""
    return f"{channel}:{key}:{at_us}:{execution}" + (f";{part}" if part else "")


def _parts(rows: Iterable[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    size = 0
    for row in rows:
        if size and size + len(row) > _LARGEST:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += len(row) + 1
    return parts
