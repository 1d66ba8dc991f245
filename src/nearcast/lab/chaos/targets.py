"""The processes at a node, by what they do."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.lab.wan import namespaces

if TYPE_CHECKING:
    from nearcast.lab.wan import Area

__all__ = ["processes_of", "send_signal"]

# Words of the command lines; the first that fits counts.
_WORDS = {
    "processor": ("nearcast.site.worker.processor_main",),
    "worker": ("nearcast.site.worker",),
    "broker": ("broker.conf",),
    "store": ("store.conf",),
    "agent": ("site", "run"),
    "coordinator": ("coordinator", "run"),
    "driver": ("cluster", "run"),
    "clients": ("nearcast.lab.chaos.clients",),
}


def processes_of(area: Area, node: str, role: str = "") -> list[int]:
    """The processes of a role at a node; all of them without one."""
    found = namespaces.processes([area.namespace(node)])
    return [pid for pid in found if not role or role_of(pid) == role]


def role_of(pid: int) -> str:
    """What a process does, by its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    names = {Path(word).name for word in words}
    return next((role for role, wanted in _WORDS.items() if names.issuperset(wanted)), "")


def send_signal(pids: list[int], number: signal.Signals) -> None:
    """Signal processes; those that are gone are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
