"""Finds a store that cannot write any more.

A nats-server whose disk was full refuses everything for the streams concerned until it is restarted, also when there is
room again. It answers requests as ever; that it failed to write is in its log only.
"""

from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["StoreWrites"]

_log = logging.getLogger(__name__)
_FAILURE = b"critical write error"
_LONGEST_READ = 1 << 20
_ROOM = 16 << 20


class StoreWrites:
    """Reads what the store of one site logs. directory: where it writes.

    failed: it could not write, and was not restarted since: it takes no messages.
    """

    def __init__(self, site: str, log_file: Path, directory: Path) -> None:
        self._site, self._log_file, self._directory = site, log_file, directory
        self._position = 0
        self.failed = False

    def restarted(self) -> None:
        """The store was started: what it logged before does not count."""
        if self.failed:
            _log.info("the store of site %s writes again", self._site)
        self._position, self.failed = self._size(), False

    def check(self) -> None:
        """Raise NearcastError when the store failed to write, and there is room now: it must be restarted."""
        failures = [line for line in self._logged().splitlines() if _FAILURE in line.lower()]
        if not self.failed and not failures:
            return
        free = shutil.disk_usage(self._directory).free
        if not self.failed:
            _log.error(
                "the store of site %s cannot write: %s; %s has %.1f MB free, %.1f MB are needed: make room, and it is "
                "restarted",
                self._site,
                failures[0].decode(errors="replace").rpartition("[ERR] ")[2],
                self._directory,
                free / 1e6,
                _ROOM / 1e6,
            )
            self.failed = True
        if free >= _ROOM:
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
