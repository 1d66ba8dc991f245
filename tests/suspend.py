"""Processes that hang."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def suspend(pid: int) -> None:
    """Stop a process. The signal alone does not: on a busy machine its threads run on for a moment, and answer."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 20
    while not all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} does not stop")
        time.sleep(0.005)


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
