"""Results: stored before they are published, so that each is published once, whichever process is killed between."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.nats import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.cluster.nats_source.blocking_connection import BlockingConnection

__all__ = ["RESULTS", "ResultLog", "group_results", "result_id"]

_log = logging.getLogger(__name__)
_LARGEST = 512 << 10

RESULTS = pa.schema(
    [
        ("channel", pa.string()),
        ("key", pa.string()),
        ("execution", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("part", pa.int32()),
        ("payload", pa.string()),
    ]
)


@dataclass(frozen=True)
class StoredResults:
    """Results on disk. metadata: the positions of their channels' streams before any was published, and more.

    recovered: stored by a run that did not finish; some of them may be published already.
    """

    table: pa.Table
    metadata: dict[str, Any]
    recovered: bool

    @property
    def positions(self) -> dict[str, int]:
        return dict(self.metadata.get("positions", {}))


def group_results(rows: pa.Table, execution: int, at_us: int) -> pa.Table:
    """One result for each subscription from rows (channel, key, row as JSON, position); a large one in several parts.

    at_us: the time of the results. It is part of their ids, so it must follow from the execution, not from a clock: a
    repeated execution has the same ids, on either lane.
    position: where the query orders its rows, the place of each within its result.
    """
    if pc.any(pc.is_valid(rows["position"])).as_py():
        rows = rows.take(pc.sort_indices(rows, [("position", "ascending")]))
    found: dict[tuple[str, str], list[str]] = {}
    columns = (rows["channel"].to_pylist(), rows["key"].to_pylist(), rows["row"].to_pylist())
    for channel, key, row in zip(*columns, strict=True):
        found.setdefault((channel, key), []).append(row)
    out: list[tuple[str, str, int, int, int, str]] = []
    for (channel, key), all_rows in found.items():
        for part, some in enumerate(_parts(all_rows)):
            payload = f'{{"channel":"{channel}","key":"{key}","execution":{execution},"rows":[{",".join(some)}]}}'
            out.append((channel, key, execution, at_us, part, payload))
    if not out:
        return RESULTS.empty_table()
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*out, strict=True), RESULTS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=RESULTS)


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
        if table.num_rows:
            day = table["at"][0].as_py().strftime("%Y-%m-%d")
            self._warehouse.write(f"{self.folder}/day={day}", number, table, noted)
        return StoredResults(table, noted, False)

    def publish(self, stored: StoredResults) -> int:
        """Publish those that are not published yet; returns how many."""
        waiting: dict[str, list[tuple[str, str, bytes]]] = {}
        table = stored.table
        for channel, key, execution, at, part, payload in zip(
            *(table[name].to_pylist() for name in ("channel", "key", "execution")),
            table["at"].cast(pa.int64()).to_pylist(), table["part"].to_pylist(), table["payload"].to_pylist(),
            strict=True,
        ):  # fmt: skip
            message = (
                subjects.channel_results(channel, key),
                result_id(channel, key, at, execution, part),
                payload.encode(),
            )
            waiting.setdefault(channel, []).append(message)
        published = 0
        for channel, messages in waiting.items():
            position = stored.positions[channel]
            if not stored.recovered:
                last = self._connection.publish_in_order(messages)
                self._positions[channel] = last
                published += len(messages)
                if last == position + len(messages):
                    continue  # the usual case: all are in the stream, and nothing else is
                # Some were dropped, or the stream was created again.
                position = max(min(position, last - len(messages)), 0)
            published += self._publish_missing(channel, messages, position)
        if stored.recovered:
            _log.info("recovered %d results, published %d that were missing", table.num_rows, published)
        return published

    def _publish_missing(self, channel: str, messages: Sequence[tuple[str, str, bytes]], position: int) -> int:
        """Publish those whose ids the stream does not hold from a position on; returns how many."""
        known = self._published(channel, position)
        missing = [message for message in messages if message[1] not in known]
        if missing:
            self._connection.publish(missing)
        self._positions.pop(channel, None)
        return len(missing)

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
        entries = self._connection.call(reader.read_range(stream, pattern, position + 1, last + 1))
        return {entry.id.decode() for entry in entries if entry.id}


def result_id(channel: str, key: str, at_us: int, execution: int, part: int) -> str:
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
