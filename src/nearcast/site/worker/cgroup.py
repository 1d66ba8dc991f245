"""A cgroup for a processor process and all that it forks, where the kernel and the site's rights allow one.

Resource limits hold for each process alone, and a process can leave its group. A cgroup counts the memory and the tasks
of all of them together, and nobody leaves it. Version 2 needs a delegated cgroup (or root), version 1 needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cgroup", "cgroup_parents"]

_log = logging.getLogger(__name__)
_PREFIX = "nearcast-"
_CONTROLLERS = ("memory", "pids")
_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")  # of version 2 and 1
_OOM_FILES = ("memory.events", "memory.oom_control")
_EMPTY_WITHIN = 5.0
_numbers = itertools.count()


class Cgroup:
    """folders: one in each hierarchy it is part of: a single one for version 2, one per controller for version 1."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    @classmethod
    def create(cls, memory: int, tasks: int) -> Cgroup | None:
        """A new one with at most so many bytes and tasks (threads count), or nothing where that is not allowed."""
        name = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        for parents in cgroup_parents(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")):
            made = cls([])
            try:
                for parent in parents:
                    _remove_abandoned(parent)
                    (parent / name).mkdir()
                    made.folders.append(parent / name)
                made._limit(memory, tasks)
            except OSError as error:
                _log.debug("no cgroup in %s: %s", ", ".join(map(str, parents)), error)
                made.remove()
                continue
            return made
        return None

    def join(self) -> None:
        """Move this process into it."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")

    def pids(self) -> set[int]:
        """The processes in it."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found |= {int(line) for line in (folder / "cgroup.procs").read_text().split()}
        return found - {0}  # which stands for one of another namespace, and for `kill` it is the own group

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of it for its memory."""
        for folder, file in itertools.product(self.folders, _OOM_FILES):
            with contextlib.suppress(OSError):
                counts = dict(line.split() for line in (folder / file).read_text().splitlines())
                if int(counts.get("oom_kill", 0)):
                    return True
        return False

    def kill(self) -> None:
        """Kill all that is in it, until nothing is: a process may fork while others are killed."""
        deadline = time.monotonic() + _EMPTY_WITHIN
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)

    def remove(self) -> None:
        """Kill what is left in it, and remove it."""
        self.kill()
        for folder in self.folders:
            with contextlib.suppress(OSError):  # a process that has not quite ended: the next one to be made removes it
                folder.rmdir()

    def _limit(self, memory: int, tasks: int) -> None:
        for files, value in ((_MEMORY_FILES, memory), (("pids.max",), tasks)):
            found = [folder / file for folder in self.folders for file in files if (folder / file).exists()]
            if not found:
                raise OSError(f"there is no {files[0]}")
            found[0].write_text(str(value))


def cgroup_parents(root: Path, own: Path) -> Iterable[list[Path]]:
    """Where a cgroup may be made: below the process's own, beside it (if that was delegated), or by version 1."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:  # not Linux
        return
    paths = {controller: path.lstrip("/") for _, names, path in lines for controller in names.split(",")}
    if "" in paths:
        folder = root / paths[""]
        for parent in (folder, folder.parent) if folder != root else (folder,):
            if _has_controllers(parent):
                yield [parent]
    if all(controller in paths for controller in _CONTROLLERS):
        folders = [root / controller / paths[controller] for controller in _CONTROLLERS]
        # In a namespace the path may be one that is not visible here.
        yield [
            folder if folder.is_dir() else root / controller
            for folder, controller in zip(folders, _CONTROLLERS, strict=True)
        ]


def _has_controllers(parent: Path) -> bool:
    """Whether children of a cgroup have the controllers; those that can be switched on are."""
    control = parent / "cgroup.subtree_control"
    try:
        if not set(_CONTROLLERS) <= set((parent / "cgroup.controllers").read_text().split()):
            return False
        if not set(_CONTROLLERS) <= set(control.read_text().split()):
            control.write_text(" ".join(f"+{controller}" for controller in _CONTROLLERS))
    except OSError:
        return False
    return True


def _remove_abandoned(parent: Path) -> None:
    """Those of workers that were killed; one that still has processes stays."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
