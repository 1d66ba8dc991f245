"""Network namespaces by name, as `ip netns` keeps them, and what is opened inside them.

Linux keeps a network namespace per thread. So a thread enters one, opens a device or a socket there and ends;
the process itself never leaves its own namespace, and what was opened stays where it was opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import struct
import subprocess
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "NamespaceError",
    "call_inside",
    "create",
    "delete",
    "missing_right",
    "names",
    "open_tun",
    "processes",
    "start_inside",
]

T = TypeVar("T")

FOLDER = Path("/run/netns")
TUN_CONTROL = "/dev/net/tun"
DEVICE = "wan0"
MTU = 1500
# Packets that may wait in a device for the emulator to read them, so that a burst is not lost.
QUEUE_LENGTH = 2000
SECONDS_TO_END = 3.0

# From linux/if_tun.h.
TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000


class NamespaceError(NearcastError, OSError):
    """The system does not let us make or enter a network namespace."""


def missing_right() -> str | None:
    """Why no wide area can be made here, in one sentence; nothing if it can. Found out by trying."""
    if shutil.which("ip") is None:
        return "a wide area needs the command `ip`: install the package iproute2"
    probe = f"nc-probe-{secrets.token_hex(4)}"
    try:
        create([probe])
        try:
            os.close(open_tun(probe, "10.77.0.1/16"))
        finally:
            delete([probe])
    except OSError as error:
        return f"a wide area needs the right to create network namespaces and TUN devices (be root): {error}"
    return None


def names() -> set[str]:
    """The namespaces there are."""
    try:
        return {entry.name for entry in FOLDER.iterdir()}
    except FileNotFoundError:
        return set()


def create(wanted: Sequence[str]) -> None:
    """Create namespaces; none of them may exist."""
    _ip("-batch", "-", commands=[f"netns add {name}" for name in wanted])


def delete(unwanted: Sequence[str]) -> None:
    """End every process inside, then delete the namespaces. Those that are gone already are no error."""
    there = sorted(names().intersection(unwanted))
    if not there:
        return
    _end_processes(there)
    _ip("-batch", "-", commands=[f"netns delete {name}" for name in there])


def open_tun(namespace: str, address: str) -> int:
    """Make the one device of a namespace, with its address; it exists as long as the descriptor is open."""

    def make() -> int:
        descriptor = os.open(TUN_CONTROL, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
        return descriptor

    descriptor = call_inside(namespace, make)
    setup = [
        "link set lo up",
        f"address add {address} dev {DEVICE}",
        f"link set {DEVICE} up mtu {MTU} txqueuelen {QUEUE_LENGTH}",
    ]
    _ip("-n", namespace, "-batch", "-", commands=setup)
    return descriptor


def call_inside(namespace: str, call: Callable[[], T]) -> T:
    """The result of a call made by a thread that is inside a namespace."""
    return start_inside(namespace, call).result()


def start_inside(namespace: str, call: Callable[[], T]) -> Future[T]:
    """Start a thread that makes a call inside a namespace."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def enter_and_call() -> None:
        try:
            _enter(namespace)
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    # A daemon: a call that never ends does not keep this process from ending.
    threading.Thread(target=enter_and_call, name=f"in {namespace}", daemon=True).start()
    return done


def _enter(namespace: str) -> None:
    # os.setns comes with Python 3.12.
    descriptor = os.open(FOLDER / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise NamespaceError(f"cannot enter namespace {namespace}: {reason}")
    finally:
        os.close(descriptor)


def _end_processes(namespaces: Sequence[str]) -> None:
    """Ask, then make every process inside end. They are of the area: nothing else can be in there."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        limit = time.monotonic() + SECONDS_TO_END
        inside = processes(namespaces)
        for process in inside:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        while inside and time.monotonic() < limit:
            time.sleep(0.02)
            inside = processes(namespaces)
        if not inside:
            return


def processes(namespaces: Sequence[str]) -> list[int]:
    """The processes inside any of the namespaces, found as `ip netns pids` finds them, in one pass."""
    wanted = set()
    for name in namespaces:
        with contextlib.suppress(FileNotFoundError):
            status = (FOLDER / name).stat()
            wanted.add((status.st_dev, status.st_ino))
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            # A process may end while we look, or be a zombie, which has no namespace any more.
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{entry.name}/ns/net")
                if (status.st_dev, status.st_ino) in wanted:
                    found.append(int(entry.name))
    return found


def _ip(*arguments: str, commands: Sequence[str]) -> None:
    done = subprocess.run(
        ["ip", *arguments], input="\n".join(commands) + "\n", capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["ip failed"])[0]
        raise NamespaceError(reason)
