"""Start, find and stop a wide area, and remove what a killed emulator left behind.

The emulator holds a lock on a file in its area's folder as long as it lives, however it ends. A folder whose
lock is free is a leftover, and every start clears those. (A process number alone would not do: it is reused.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from nearcast.errors import InputError, NearcastError
from nearcast.lab.wan import namespaces
from nearcast.lab.wan.area import FOLDER, Area, AreaRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nearcast.lab.wan.topology import Topology

__all__ = ["clear_leftovers", "emulator_process", "find", "running", "start", "stop"]

SECONDS_TO_START = 60.0
SECONDS_TO_STOP = 15.0
READY = b"ready\n"
NOT_ALLOWED = "only root may look at wide areas and change them"


def start(
    topology: Topology, name: str, *, seed: int = 0, leased: bool = False
) -> tuple[Area, subprocess.Popen[bytes]]:
    """Start an emulator, which makes the namespaces. Returns when packets flow.

    The emulator of a leased area has a pipe from this process as its input and ends, with all it made, when
    the pipe closes: even if this process is killed nothing stays behind.
    """
    record = AreaRecord(name, topology, seed, leased)
    if reason := namespaces.missing_right():
        raise NearcastError(reason)
    with _machine_lock():
        _clear_leftovers()
        lock = _claim(record)
    with open(lock, "rb") as held, (record.folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nearcast.lab.wan.emulator", str(record.folder)],
            stdin=subprocess.PIPE if leased else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(held.fileno(),),
            start_new_session=True,
        )
    try:
        _wait_until_ready(record, process)
    except BaseException:
        stop(name, process)
        raise
    return Area(record), process


def find(name: str) -> Area:
    """The area of a name, which must be up."""
    up = running()
    if name not in up:
        raise InputError(f"no area {name!r} is up" + (f"; up: {', '.join(up)}" if up else ""))
    return Area(msgspec.json.decode((FOLDER / name / "record.json").read_bytes(), type=AreaRecord))


def running() -> list[str]:
    """The names of the areas that are up."""
    return [folder.name for folder in _folders() if _held(folder)]


def emulator_process(name: str) -> int:
    """The process number of a running area's emulator."""
    return int((FOLDER / name / "pid").read_text())


def stop(name: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """End an area's emulator, every process inside the area, and the namespaces; it may be dead already."""
    folder = FOLDER / name
    for number in (signal.SIGTERM, signal.SIGKILL):
        limit = time.monotonic() + SECONDS_TO_STOP
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if _held(folder):
                os.kill(emulator_process(name), number)
        while _held(folder) and time.monotonic() < limit:
            time.sleep(0.01)
    if process is not None:
        # An emulator that had not yet written its process number was not signalled above.
        process.terminate()
        process.communicate()
    with _machine_lock():
        _clear(folder)


def clear_leftovers() -> list[str]:
    """Remove what emulators that were killed left behind. Returns the names of their areas."""
    with _machine_lock():
        return _clear_leftovers()


def _claim(record: AreaRecord) -> int:
    """Write an area's folder and take its lock."""
    if record.folder.exists():
        raise InputError(f"area {record.name!r} is up already; take it down first or choose another name")
    if taken := namespaces.names().intersection(record.namespaces()):
        raise InputError(f"there is a namespace {min(taken)!r} that is not ours; choose another area name")
    record.folder.mkdir()
    lock = os.open(record.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    (record.folder / "record.json").write_bytes(msgspec.json.encode(record))
    return lock


def _wait_until_ready(record: AreaRecord, process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], SECONDS_TO_START)[0]:
        raise NearcastError(f"the emulator was not ready within {SECONDS_TO_START:g} s")
    if process.stdout.readline() != READY:
        lines = (record.folder / "log").read_text().strip().splitlines()
        raise NearcastError(f"the emulator did not start: {lines[-1] if lines else 'its log is empty'}")


def _clear_leftovers() -> list[str]:
    leftovers = [folder for folder in _folders() if not _held(folder)]
    for folder in leftovers:
        _clear(folder)
    return [folder.name for folder in leftovers]


def _clear(folder: Path) -> None:
    # Without a record no namespace was made yet, or all of them are gone.
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        namespaces.delete(msgspec.json.decode((folder / "record.json").read_bytes(), type=AreaRecord).namespaces())
    shutil.rmtree(folder, ignore_errors=True)


def _folders() -> list[Path]:
    return sorted(path for path in FOLDER.iterdir() if path.is_dir()) if FOLDER.is_dir() else []


def _held(folder: Path) -> bool:
    """Whether an emulator holds the lock of a folder."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        raise NearcastError(NOT_ALLOWED) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@contextlib.contextmanager
def _machine_lock() -> Iterator[None]:
    """One start or removal at a time on this machine: none removes an area that another is still creating."""
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        lock = (FOLDER / ".lock").open("wb")
    except PermissionError:
        raise NearcastError(NOT_ALLOWED) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
