"""Where results and small documents are stored: files, written atomically, on a local or shared disk.

A file is named after the last sequence it holds, so that a repeated micro-batch overwrites the same files.
Merged files name the range that they cover; a reader skips files that are covered, so merging needs no lock.

    datasets/<name>/                                                          Delta tables, see `delta_table`
    results/<producer>/day=2026-11-15/…                                       results, stored before they are published
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from nearcast.errors import NearcastError

__all__ = ["LONGEST_READ", "FileSpan", "StorageError", "Warehouse", "disk_reason", "live_files", "merges"]

_NAME = re.compile(r"batch-(?P<last>\d{20})\.parquet|merged-(?P<low>\d{20})-(?P<high>\d{20})\.parquet")
# This many files of one size are merged into one of the next size.
_MERGE = 32
_PIECE = 65_536
LONGEST_READ = timedelta(hours=1)
"""A query that takes longer may find that files it began with were deleted."""


class StorageError(NearcastError, OSError):
    """The warehouse cannot be read or written."""


@dataclass(frozen=True, order=True)
class FileSpan:
    """A data file and the sequences it covers: those after `low` - 1 up to `high`."""

    folder: str
    low: int
    high: int
    merged: bool
    path: str


def live_files(paths: Iterable[str]) -> list[FileSpan]:
    """The files that hold data exactly once: without those that a merged file covers, by folder."""
    spans = sorted((span for path in paths if (span := _span(path)) is not None), key=_widest_first)
    kept: list[FileSpan] = []
    covered: dict[str, list[FileSpan]] = {}
    for span in spans:
        wider = covered.setdefault(span.folder, [])
        if not any(other.low <= span.low and span.high <= other.high for other in wider):
            kept.append(span)
            if span.merged:
                wider.append(span)
    return sorted(kept)


def merges(spans: Iterable[FileSpan], *, at_least: int = _MERGE) -> list[list[FileSpan]]:
    """Groups of files of one folder and kind worth merging. The newest file is left out: it may be written again."""
    groups: dict[tuple[str, bool], list[FileSpan]] = {}
    spans = list(spans)
    newest = max((span.high for span in spans), default=0)
    for span in spans:
        if span.high < newest:
            groups.setdefault((span.folder, span.merged), []).append(span)
    return [sorted(group, key=lambda s: s.high) for group in groups.values() if len(group) >= at_least]


class Warehouse:
    """Files below one folder: a path, or a URI that Arrow and Spark both understand."""

    def __init__(self, root: str) -> None:
        self.location = root
        try:
            if "://" in root:
                self.fs, base = pafs.FileSystem.from_uri(root)
                self.root, self._scheme = base.rstrip("/"), root.split("://")[0]
            else:
                self.fs, self.root, self._scheme = pafs.LocalFileSystem(), root.rstrip("/"), "file"
            self.fs.create_dir(self.root, recursive=True)
        except (OSError, pa.ArrowInvalid) as error:
            raise StorageError(f"warehouse {root}: {error}") from error

    def uri(self, path: str) -> str:
        """The URI of a path, for Spark."""
        return f"{self._scheme}://{path}"

    def table_uri(self, path: str) -> str:
        """The location of a Delta table."""
        return path if self._scheme == "file" else self.uri(path)

    def folder(self, *parts: str) -> str:
        return "/".join([self.root, *parts])

    def files(self, folder: str) -> list[FileSpan]:
        """The live data files below a folder."""
        selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
        return live_files(info.path for info in self.fs.get_file_info(selector) if info.is_file)

    def write(self, folder: str, last: int, table: pa.Table, metadata: Mapping[str, Any] | None = None) -> str:
        """Write one batch as one file, atomically; returns its path."""
        path = f"{folder}/batch-{last:020d}.parquet"
        if metadata is not None:
            table = table.replace_schema_metadata({"nearcast": json.dumps(metadata)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd" if table.num_rows > 1000 else "none")
        self.write_bytes(path, sink.getvalue())
        return path

    def read(self, span_or_path: FileSpan | str) -> pa.Table:
        path = span_or_path.path if isinstance(span_or_path, FileSpan) else span_or_path
        with self.fs.open_input_file(path) as stream:
            return pq.ParquetFile(stream).read()

    @staticmethod
    def metadata(table: pa.Table) -> dict[str, Any]:
        """The metadata that `write` stored with a batch."""
        stored = table.schema.metadata or {}
        return dict(json.loads(stored.get(b"nearcast", b"{}")))

    def write_bytes(self, path: str, content: Any) -> None:
        """Write a file, atomically."""
        folder = str(PurePosixPath(path).parent)
        try:
            self.fs.create_dir(folder, recursive=True)
        except OSError as error:
            raise StorageError(f"{folder} cannot be created: {disk_reason(error)}") from error
        with self._replacing(path) as sink:
            sink.write(content)

    def save_state(self, folder: str, state: Mapping[str, Any]) -> None:
        """Replace the small document of a folder."""
        self.write_bytes(f"{folder}/state.json", json.dumps(state).encode())

    def load_state(self, folder: str) -> dict[str, Any]:
        """The document of a folder, or an empty one."""
        path = f"{folder}/state.json"
        if not self.fs.get_file_info(path).is_file:
            return {}
        with self.fs.open_input_file(path) as stream:
            try:
                return dict(json.loads(stream.read()))
            except ValueError as error:
                raise StorageError(f"{path} is damaged ({error}); restore it from a backup or remove it") from error

    def merge(self, folder: str, *, at_least: int = _MERGE) -> int:
        """Merge small files; returns how many were merged. They are deleted when no reader can have them open."""
        done = 0
        self._delete_covered(folder)
        for group in merges(self.files(folder), at_least=at_least):
            low, high = min(span.low for span in group), max(span.high for span in group)
            self._copy(group, f"{group[0].folder}/merged-{low:020d}-{high:020d}.parquet")
            done += len(group)
        return done

    def delete_days(self, folder: str, before: str) -> list[str]:
        """Delete the days before one; returns them."""
        selector = pafs.FileSelector(folder, allow_not_found=True)
        gone = []
        for info in self.fs.get_file_info(selector):
            day = info.base_name.removeprefix("day=")
            if info.type == pafs.FileType.Directory and info.base_name.startswith("day=") and day < before:
                self.fs.delete_dir(info.path)
                gone.append(day)
        return gone

    def remove(self, folder: str) -> None:
        """Delete a folder and its content."""
        if self.fs.get_file_info(folder).type == pafs.FileType.Directory:
            self.fs.delete_dir(folder)

    def _delete_covered(self, folder: str) -> None:
        """Delete files that were merged, some time after: a query may have begun with them."""
        selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
        found = {info.path: info for info in self.fs.get_file_info(selector) if info.is_file}
        live = {span.path for span in live_files(found)}
        merged = {span.folder: found[span.path].mtime for span in live_files(found) if span.merged}
        now = datetime.now(UTC)
        for path in found.keys() - live:
            span = _span(path)
            if span is not None and span.folder in merged and now - merged[span.folder] > LONGEST_READ:
                self.fs.delete_file(path)

    def _copy(self, group: Iterable[FileSpan], path: str) -> None:
        """Copy several files into one, a piece at a time: a merged file may be larger than memory."""
        writer: Any = None
        with self._replacing(path) as sink:
            for span in group:
                with self.fs.open_input_file(span.path) as stream:
                    file = pq.ParquetFile(stream)
                    if writer is None:
                        writer = pq.ParquetWriter(sink, file.schema_arrow.remove_metadata(), compression="zstd")
                    for batch in file.iter_batches(batch_size=_PIECE):
                        writer.write_table(pa.Table.from_batches([batch]).cast(writer.schema))
            if writer is not None:
                writer.close()

    @contextmanager
    def _replacing(self, path: str) -> Iterator[Any]:
        """A file that gets its name when it is complete."""
        beside = f"{path}.part"
        try:
            with self.fs.open_output_stream(beside) as sink:
                yield sink
            self.fs.move(beside, path)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {disk_reason(error)}") from error


def disk_reason(error: Exception) -> str:
    """What went wrong with a file, in one line."""
    full = getattr(error, "errno", None) == 28 or "No space left" in str(error) or "os error 28" in str(error)
    return "the disk is full" if full else str(error).splitlines()[0]


def _span(path: str) -> FileSpan | None:
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    if found["last"]:
        return FileSpan(folder, int(found["last"]), int(found["last"]), False, path)
    return FileSpan(folder, int(found["low"]), int(found["high"]), True, path)


def _widest_first(span: FileSpan) -> tuple[int, bool]:
    return (span.low - span.high, not span.merged)
