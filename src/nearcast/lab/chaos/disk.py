"""A small disk for one store, in memory, that can be filled and freed."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from nearcast.errors import NearcastError

__all__ = ["clear_leftover_disks", "filled", "small_disk"]

_NAME = "nearcast-chaos-"
_MEBIBYTES = 64
_FILLER = "filler"


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own at a folder, inside the block. Its name tells which process made it."""
    clear_leftover_disks()
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={_MEBIBYTES}m", f"{_NAME}{os.getpid()}", str(folder))
    try:
        yield
    finally:
        _run("umount", "-l", str(folder))


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No room is left on the disk, inside the block."""
    filler = folder / _FILLER
    try:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * size) == size:
                        pass
        yield
    finally:
        filler.unlink(missing_ok=True)


def clear_leftover_disks() -> None:
    """Remove the disks of runs that were killed."""
    for line in Path("/proc/mounts").read_text().splitlines():
        name, folder = line.split()[:2]
        if name.startswith(_NAME) and not Path("/proc", name.removeprefix(_NAME)).exists():
            _run("umount", "-l", folder)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NearcastError(f"{' '.join(command)}: {done.stderr.strip()}")
