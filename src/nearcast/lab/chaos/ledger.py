"""A process's own record of what it did: a line of JSON per event, written through at once, so that a kill loses none.

Times are the machine's clock, also in a process whose clock was set wrong on purpose.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["LedgerFile", "true_time"]

true_time = time.time  # a client with a false clock replaces `time.time` later


class LedgerFile:
    """One file of the ledger. Never shared between processes."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._encoder = msgspec.json.Encoder()

    def note(self, event: str, **fields: Any) -> None:
        """Add an event; one write, so that a line is whole or missing."""
        line = self._encoder.encode({"event": event, "at": true_time(), **fields})
        os.write(self._descriptor, line + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
