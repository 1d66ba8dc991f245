"""Process groups and sessions: counted, and killed whole, so that nothing that was forked is left."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

__all__ = ["group_size", "kill_group", "kill_session"]


def kill_group(group: int) -> None:
    """Kill a process group, those that ignore signals too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def group_size(group: int) -> int:
    """How many processes a group has."""
    return sum(found == group for _, found, _ in _processes())


def kill_session(session: int) -> None:
    """Kill what is left of a session: processes that outlived the one that led it."""
    for pid, _, found in _processes():
        if found == session:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[tuple[int, int, int]]:
    """Process, group and session of all that run on this machine."""
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name of the command, in parentheses, may hold anything.
                    fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    found.append((int(name), int(fields[2]), int(fields[3])))
    return found
