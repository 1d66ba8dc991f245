"""Keeps batches in a dataset's tables about once a second, beside the path of notifications.

What is not committed when the driver dies is read from the stream again: JetStream is the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from nearcast.cluster.datasets.delta_table import RecordTable, write_files
from nearcast.cluster.datasets.validation import ValidatedBatch
from nearcast.cluster.spark_errors import error_line
from nearcast.errors import NearcastError

__all__ = ["TableWriter"]

_log = logging.getLogger(__name__)
_SECONDS = 1.0
# A batch waits while more records than this are not written: memory is bounded when the disk is slow or full.
_MOST_PENDING = 500_000


class TableWriter:
    """One thread for a dataset. committed: is told the last batch that is in; problem: is told why one is not."""

    def __init__(
        self,
        records: RecordTable,
        quarantine: RecordTable,
        term: int,
        committed: Callable[[ValidatedBatch], None],
        problem: Callable[[str], None],
    ) -> None:
        self._records, self._quarantine, self._term = records, quarantine, term
        self._committed, self._problem = committed, problem
        self._pending: list[ValidatedBatch] = []
        self._changed = threading.Condition()
        self._flushing = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, batch: ValidatedBatch) -> None:
        """Write a batch soon."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows() < _MOST_PENDING or self._stop.is_set())
            self._pending.append(batch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="table writer", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what is pending, and end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)
        self._flush_or_report()

    def flush(self) -> None:
        """Write what is pending now."""
        with self._flushing:
            with self._changed:
                batches = list(self._pending)
            if not batches:
                return
            last = batches[-1].last
            name = f"{self._term:08d}-{last:020d}"
            refused = pa.concat_tables([batch.refused for batch in batches])
            if refused.num_rows or any(batch.refused_files for batch in batches):
                times = pc.fill_null(refused["time"], pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC")))
                files = write_files(self._quarantine.fs, self._quarantine.folder, name, refused, times)
                self._quarantine.commit([*files, *(f for b in batches for f in b.refused_files)], last)
            valid = pa.concat_tables([batch.valid for batch in batches])
            times = pa.chunked_array([batch.times for batch in batches])
            files = write_files(self._records.fs, self._records.folder, name, valid, times)
            self._records.commit([*(f for b in batches for f in b.files), *files], last)
            self._committed(batches[-1])
            with self._changed:
                del self._pending[: len(batches)]
                self._changed.notify_all()

    def _run(self) -> None:
        while not self._stop.wait(_SECONDS):
            self._flush_or_report()

    def _flush_or_report(self) -> None:
        try:
            self.flush()
        except NearcastError as error:  # tried again a second later
            _log.warning("%s", error)
            self._problem(str(error))
        except Exception as error:  # the thread continues whatever happens
            _log.exception("a batch is not in the table yet")
            self._problem(error_line(error))

    def _rows(self) -> int:
        return sum(batch.valid.num_rows + batch.refused.num_rows for batch in self._pending)
