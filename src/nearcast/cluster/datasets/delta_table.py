"""Delta Lake tables of records: any program reads them while they are written.

Parquet files are written first, by the driver or by executors; one commit adds them with two application transactions:
`records`, the last sequence that is in the table, and `term`, the lease term of the driver. A commit whose records are
in already is skipped, and a driver with an older term is refused.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from nearcast.cluster.datasets.warehouse import LONGEST_READ, StorageError, disk_reason
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from nearcast.cluster.datasets.warehouse import Warehouse

__all__ = ["DAY", "FencedError", "RecordTable", "TableFile", "replace_table", "vacuum", "write_files"]

DAY = "_day"
"""The column by which tables are partitioned: the day of a record's time."""
_RECORDS, _TERM = "records", "term"
_SETTINGS = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 6 hours",
    "delta.deletedFileRetentionDuration": f"interval {int(LONGEST_READ.total_seconds())} seconds",
}
_ATTEMPTS = 20
# From this many files of one day on, they are compacted.
_COMPACT = 32


class FencedError(NearcastError):
    """A driver with a newer lease term has taken the table over."""


@dataclass(frozen=True)
class TableFile:
    """A Parquet file of a table, not committed yet. path: within the table. first, last: its sequences."""

    path: str
    size: int
    day: str
    rows: int
    first: int
    last: int

    def action(self) -> AddAction:
        bounds = {"minValues": {"_sequence": self.first}, "maxValues": {"_sequence": self.last}}
        stats = json.dumps({"numRecords": self.rows, **bounds})
        return AddAction(self.path, self.size, {DAY: self.day}, time.time_ns() // 1_000_000, True, stats)


def write_files(fs: pafs.FileSystem, folder: str, name: str, records: pa.Table, times: pa.Array) -> list[TableFile]:
    """Write records as Parquet files of a table, one for each day. name: the same for the same records."""
    found: list[TableFile] = []
    if not records.num_rows:
        return found
    days = pc.strftime(times, format="%Y-%m-%d")
    for day in sorted(pc.unique(days).to_pylist()):
        some = records.filter(pc.equal(days, day))
        path = f"{DAY}={day}/{name}.parquet"
        sink = pa.BufferOutputStream()
        pq.write_table(some, sink, compression="zstd" if some.num_rows > 1000 else "none")
        content = sink.getvalue()
        try:
            fs.create_dir(f"{folder}/{DAY}={day}", recursive=True)
            with fs.open_output_stream(f"{folder}/{path}") as stream:
                stream.write(content)
        except OSError as error:
            raise StorageError(f"{folder}/{path} cannot be written: {disk_reason(error)}") from error
        first, last = pc.min_max(some["_sequence" if "_sequence" in some.column_names else "sequence"]).values()
        found.append(TableFile(path, content.size, day, some.num_rows, first.as_py(), last.as_py()))
    return found


def _seconds(moment: pa.Scalar) -> float:
    """Of a time that a Delta log has: milliseconds, as a number or as a timestamp."""
    return float(moment.cast(pa.timestamp("ms")).cast(pa.int64()).as_py()) / 1000


def vacuum(uri: str) -> None:
    """Delete files that are in a table no more, and were not for longer than any reader takes."""
    hours = math.ceil(LONGEST_READ / timedelta(hours=1))
    DeltaTable(uri).vacuum(hours, dry_run=False, enforce_retention_duration=False)


def replace_table(warehouse: Warehouse, folder: str, content: pa.Table, **noted: int) -> None:
    """Replace all that a Delta table holds. noted: application transactions."""
    uri, transactions = warehouse.table_uri(folder), [Transaction(name, value) for name, value in noted.items()]
    properties = CommitProperties(app_transactions=transactions)
    try:
        write_deltalake(uri, content, mode="overwrite", schema_mode="overwrite", commit_properties=properties)
        vacuum(uri)
    except (DeltaError, OSError) as error:
        raise StorageError(f"{folder} cannot be written: {disk_reason(error)}") from error


class RecordTable:
    """One Delta table. term: of the driver that writes it; 0 for a reader."""

    def __init__(self, warehouse: Warehouse, folder: str, schema: pa.Schema, term: int = 0) -> None:
        self.folder, self.schema, self._warehouse, self._term = folder, schema, warehouse, term
        self._with_day = schema.append(pa.field(DAY, pa.date32()))
        self.fs = warehouse.fs
        try:
            self.fs.create_dir(folder, recursive=True)
            self._table = DeltaTable.create(
                warehouse.table_uri(folder), self._with_day, mode="ignore", partition_by=[DAY], configuration=_SETTINGS
            )
            self._add_columns()
        except (DeltaError, OSError, ValueError) as error:
            raise StorageError(f"table {folder} cannot be opened: {disk_reason(error)}") from error
        if term:
            self.commit([], self.position)

    @property
    def position(self) -> int:
        """The last sequence that is in the table."""
        return int(self._table.transaction_version(_RECORDS) or 0)

    @property
    def version(self) -> int:
        return int(self._table.version())

    def commit(self, files: Sequence[TableFile], last: int) -> None:
        """Add files with the records up to a sequence, unless they are in. FencedError when another driver writes."""
        for _ in range(_ATTEMPTS):
            if (newer := int(self._table.transaction_version(_TERM) or 0)) > self._term:
                raise FencedError(
                    f"table {self.folder} is written by a driver of term {newer}; this one has {self._term}"
                )
            if self.position >= last > 0 and files:
                return
            noted = [Transaction(_RECORDS, last), Transaction(_TERM, self._term)]
            try:
                self._table.create_write_transaction(
                    [file.action() for file in files],
                    "append",
                    self._with_day,
                    [DAY],
                    commit_properties=CommitProperties(app_transactions=noted, max_commit_retries=0),
                )
                self._table.update_incremental()
                return
            except CommitFailedError:  # somebody else has committed: compaction, a backfill, another driver
                self._table.update_incremental()
            except (DeltaError, OSError) as error:
                raise StorageError(f"table {self.folder} cannot be written: {disk_reason(error)}") from error
        raise StorageError(f"table {self.folder} cannot be written: other writers were faster {_ATTEMPTS} times")

    def append(self, files: Sequence[TableFile], name: str) -> bool:
        """Add files beside the stream, once for each name; returns whether they were added now."""
        if self._table.transaction_version(name) is not None:
            return False
        actions: list[AddAction | RemoveAction] = [file.action() for file in files]
        noted = CommitProperties(app_transactions=[Transaction(name, 1)])
        try:
            self._table.create_write_transaction(actions, "append", self._with_day, [DAY], commit_properties=noted)
        except (DeltaError, OSError) as error:
            raise StorageError(f"table {self.folder} cannot be written: {disk_reason(error)}") from error
        return True

    def paths(self, after: int | None = None) -> list[str]:
        """The paths of its files; only those with records after a sequence, if one is given."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        if after is not None and "max._sequence" in actions.column_names:
            known = pc.fill_null(actions["max._sequence"], 1 << 62)
            actions = actions.filter(pc.greater(known, after))
        return [f"{self.folder}/{path}" for path in actions["path"].to_pylist()]

    def contents(self) -> tuple[int, float]:
        """How many records it has, and when the last file of them was added, in seconds since 1970; 0 for never."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        if not actions.num_rows:
            return 0, 0.0
        return int(pc.sum(actions["num_records"]).as_py() or 0), _seconds(pc.max(actions["modification_time"]))

    def oldest_day(self) -> str | None:
        """The first day that has records."""
        days = pa.table(self._table.get_add_actions(flatten=True))[f"partition.{DAY}"].to_pylist()
        return min((f"{day}T00:00:00" for day in days), default=None)

    def refresh(self) -> None:
        """See what others have committed."""
        self._table.update_incremental()

    def compact(self) -> None:
        """Compact the small files of each day."""
        table = DeltaTable(self._warehouse.table_uri(self.folder))
        days = Counter(
            str(part) for part in pa.table(table.get_add_actions(flatten=True))[f"partition.{DAY}"].to_pylist()
        )
        for day in [day for day, count in days.items() if count >= _COMPACT]:
            table.optimize.compact([(DAY, "=", day)])

    def delete_days(self, before: str) -> None:
        """Delete the days before one."""
        DeltaTable(self._warehouse.table_uri(self.folder)).delete(f"{DAY} < '{before}'")

    def vacuum(self) -> None:
        """Delete files that are in the table no more, and were not for longer than any reader takes."""
        vacuum(self._warehouse.table_uri(self.folder))

    def _add_columns(self) -> None:
        known = {field.name for field in self._table.schema().fields}
        wanted: Sequence[Field] = Schema.from_arrow(self._with_day).fields
        if new := [field for field in wanted if field.name not in known]:
            self._table.alter.add_columns(new)
            self._table.update_incremental()
