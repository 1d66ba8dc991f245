"""Results: written down before they are published, so that whatever is killed in between, each is published once."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.nats import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nearcast.cluster.fetch import Link
    from nearcast.cluster.warehouse import Warehouse

__all__ = ["RESULTS", "ResultLog", "gather"]

_log = logging.getLogger(__name__)
_LARGEST = 512 << 10
_ID = re.compile(rb"\r\nNats-Msg-Id: ([^\r]*)\r\n")

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
class Written:
    """Results on disk. about: where the streams of their channels were before any was published, and more."""

    table: pa.Table
    about: dict[str, Any]
    again: bool

    @property
    def positions(self) -> dict[str, int]:
        return dict(self.about.get("positions", {}))


def gather(rows: pa.Table, execution: int, at_us: int) -> pa.Table:
    """One result for each subscription from rows (channel, key, row as JSON); a large one in several parts."""
    found: dict[tuple[str, str], list[str]] = {}
    columns = (rows["channel"].to_pylist(), rows["key"].to_pylist(), rows["row"].to_pylist())
    for channel, key, row in zip(*columns, strict=True):
        found.setdefault((channel, key), []).append(row)
    out: list[tuple[str, str, int, int, int, str]] = []
    for (channel, key), mine in found.items():
        for part, some in enumerate(_parts(mine)):
            payload = f'{{"channel":"{channel}","key":"{key}","execution":{execution},"rows":[{",".join(some)}]}}'
            out.append((channel, key, execution, at_us, part, payload))
    if not out:
        return RESULTS.empty_table()
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*out, strict=True), RESULTS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=RESULTS)


class ResultLog:
    """The results of one producer (the continuous channels of a dataset, or one repetitive channel), kept by day."""

    def __init__(self, warehouse: Warehouse, link: Link, producer: str, prefix: str) -> None:
        self._warehouse, self._link, self._prefix = warehouse, link, prefix
        self.folder = warehouse.folder("results", producer)
        self._positions: dict[str, int] = {}

    def written(self, number: int) -> Written | None:
        """What was written under this number before, by a run that did not come to its end."""
        for span in self._warehouse.files(self.folder):
            if span.high == number and not span.merged:
                table = self._warehouse.read(span)
                return Written(table, self._warehouse.about(table), True)
        return None

    def after(self, number: int) -> int | None:
        """The number of results that were written after these, if any."""
        later = [span.high for span in self._warehouse.files(self.folder) if span.high > number and not span.merged]
        return min(later, default=None)

    def write(self, number: int, table: pa.Table, about: Mapping[str, Any] | None = None) -> Written:
        """Write results down. From here on they are what is published, even if subscriptions change meanwhile."""
        positions = {name: self._position(name) for name in table["channel"].unique().to_pylist()}
        noted = {"positions": positions, **(about or {})}
        if table.num_rows:
            day = table["at"][0].as_py().strftime("%Y-%m-%d")
            self._warehouse.write(f"{self.folder}/day={day}", number, table, noted)
        return Written(table, noted, False)

    def publish(self, written: Written) -> int:
        """Publish what is not published yet; returns how many results that were."""
        waiting: dict[str, list[tuple[str, str, bytes]]] = {}
        table = written.table
        for channel, key, execution, at, part, payload in zip(
            *(table[name].to_pylist() for name in ("channel", "key", "execution")),
            table["at"].cast(pa.int64()).to_pylist(), table["part"].to_pylist(), table["payload"].to_pylist(),
            strict=True,
        ):  # fmt: skip
            message_id = f"{channel}:{key}:{at}:{execution}" + (f";{part}" if part else "")
            message = (subjects.channel_results(channel, key), message_id, payload.encode())
            waiting.setdefault(channel, []).append(message)
        published = 0
        for channel, messages in waiting.items():
            position = written.positions[channel]
            if not written.again:
                last = self._link.publish_in_order(messages)
                self._positions[channel] = last
                published += len(messages)
                if last == position + len(messages):
                    continue  # the usual case: they are there, and nothing else is
                position = max(min(position, last - len(messages)), 0)  # dropped ones, or a stream that was made anew
            published += self._publish_missing(channel, messages, position)
        if written.again:
            _log.info("%d results were written before: %d published now", table.num_rows, published)
        return published

    def _publish_missing(self, channel: str, messages: Sequence[tuple[str, str, bytes]], position: int) -> int:
        """Publish those whose ids the stream does not hold from a position on; returns how many."""
        known = self._published(channel, position)
        missing = [message for message in messages if message[1] not in known]
        if missing:
            self._link.publish(missing)
        self._positions.pop(channel, None)
        return len(missing)

    def tidy(self, oldest_day: str) -> None:
        """Merge small files, and forget the days before one."""
        self._warehouse.merge(self.folder)
        self._warehouse.forget_days(self.folder, oldest_day)

    def _position(self, channel: str) -> int:
        """The last sequence of a channel's stream; only this driver publishes there."""
        if channel not in self._positions:
            self._positions[channel] = self._link.state(subjects.channel_stream(channel), self._prefix).last
        return self._positions[channel]

    def _published(self, channel: str, position: int) -> set[str]:
        """The ids that a stream holds after a position: longer than any window in which a store drops duplicates."""
        found: set[str] = set()
        stream = subjects.channel_stream(channel)
        state = self._link.state(stream, self._prefix)
        first = max(position + 1, state.first)
        while first <= state.last:
            fetched = self._link.fetch(stream, self._prefix, first, state.last)
            if not fetched.headers:
                break
            for headers in fetched.headers:
                if match := _ID.search(headers):
                    found.add(match[1].decode())
            last = re.search(rb"Nats-Sequence: (\d+)", fetched.headers[-1])
            first = int(last[1]) + 1 if last else state.last + 1
        return found


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
