"""The small disk of chaos runs. The runs themselves are `make chaos`, a part of CI."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nearcast.lab.chaos import disk
from nearcast.lab.wan import missing_right

pytestmark = [
    pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason)),
    pytest.mark.xdist_group("wan"),  # a start clears what killed emulators left, of any test
]


def disks(pid: int) -> list[str]:
    """The disks that a process made; other runs may have theirs."""
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line for line in lines if line.startswith(f"nearcast-chaos-{pid} ")]


def test_a_small_disk_can_be_filled_and_freed(tmp_path: Path) -> None:
    with disk.small_disk(tmp_path / "d"):
        with disk.filled(tmp_path / "d"):
            assert shutil.disk_usage(tmp_path / "d").free == 0
            with pytest.raises(OSError, match="No space left"), (tmp_path / "d" / "x").open("wb", buffering=0) as file:
                file.write(b"x" * 8192)
        assert shutil.disk_usage(tmp_path / "d").free > 1 << 20
    assert disks(os.getpid()) == []


def test_the_disk_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal
from nearcast.lab.chaos import disk
with disk.small_disk(pathlib.Path({str(tmp_path / "d")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert process.wait() == -signal.SIGKILL
    assert len(disks(process.pid)) == 1
    disk.clear_leftover_disks()
    assert disks(process.pid) == []
