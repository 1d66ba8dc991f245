"""Results: written down before they are published, so that whatever is killed in between, each is published once."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nearcast.wire import subjects

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    """The results of one producer (the continuous channels of a dataset, or one repetitive channel)."""

    def __init__(self, warehouse: Warehouse, link: Link, producer: str, prefix: str) -> None:
        self._warehouse, self._link, self._prefix = warehouse, link, prefix
        self.folder = warehouse.folder("results", producer)

    def written(self, number: int) -> Written | None:
        """What was written under this number before, by a run that did not come to its end."""
        table = self._warehouse.batch(self.folder, number)
        if table is None:
            return None
        return Written(table, self._warehouse.about(table), True)

    def after(self, number: int) -> int | None:
        """The number of results that were written after these, if any."""
        later = [span.high for span in self._warehouse.files(self.folder) if span.high > number and not span.merged]
        return min(later, default=None)

    def write(self, number: int, table: pa.Table, about: Mapping[str, Any] | None = None) -> Written:
        """Write results down. From here on they are what is published, even if subscriptions change meanwhile."""
        positions = {name: self._position(name) for name in table["channel"].unique().to_pylist()}
        noted = {"positions": positions, **(about or {})}
        if table.num_rows:
            self._warehouse.write(self.folder, number, table, noted)
        return Written(table, noted, False)

    def publish(self, written: Written) -> int:
        """Publish what is not published yet; returns how many results that were."""
        known = self._published(written) if written.again else set()
        messages = []
        table = written.table
        for channel, key, execution, at, part, payload in zip(
            *(table[name].to_pylist() for name in ("channel", "key", "execution")),
            table["at"].cast(pa.int64()).to_pylist(), table["part"].to_pylist(), table["payload"].to_pylist(),
            strict=True,
        ):  # fmt: skip
            message_id = f"{channel}:{key}:{at}:{execution}" + (f";{part}" if part else "")
            if message_id not in known:
                messages.append((subjects.channel_results(channel, key), message_id, payload.encode()))
        if messages:
            self._link.publish(messages)
        if written.again:
            _log.info("%d results were written before: %d published now", table.num_rows, len(messages))
        return len(messages)

    def tidy(self) -> None:
        """Merge small files."""
        self._warehouse.merge(self.folder)

    def _position(self, channel: str) -> int:
        return self._link.state(subjects.channel_stream(channel), self._prefix).last

    def _published(self, written: Written) -> set[str]:
        """The ids that the streams hold from before on: longer than any window in which a store drops duplicates."""
        found: set[str] = set()
        for channel, position in written.positions.items():
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
