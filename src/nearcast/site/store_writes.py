"""Finds a store that cannot write any more.

A nats-server whose disk was full refuses everything for the streams concerned until it is restarted, also when there is
room again. It answers requests as ever; that it failed to write is in its log only.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["StoreWrites"]

_FAILURE = b"critical write error"
_LONGEST_READ = 1 << 20
_ROOM = 16 << 20


class StoreWrites:
    """Reads what one store logs. directory: where it writes."""

    def __init__(self, log_file: Path, directory: Path) -> None:
        self._log_file, self._directory = log_file, directory
        self._position = 0
        self._failed = False

    def restarted(self) -> None:
        """The store was started: what it logged before does not count."""
        self._position, self._failed = self._size(), False

    def check(self) -> None:
        """Raise NearcastError when the store failed to write, and there is room now: it must be restarted."""
        self._failed = self._failed or _FAILURE in self._logged().lower()
        if self._failed and shutil.disk_usage(self._directory).free >= _ROOM:
            raise NearcastError("the store failed to write and has room again")

    def _logged(self) -> bytes:
        """What was logged since the last look; of much, the end."""
        size = self._size()
        start = max(min(self._position, size), size - _LONGEST_READ)
        self._position = size
        if start == size:
            return b""
        with self._log_file.open("rb") as log:
            log.seek(start)
            return log.read(size - start)

    def _size(self) -> int:
        return os.stat(self._log_file).st_size if self._log_file.exists() else 0
