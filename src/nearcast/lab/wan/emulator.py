"""The process behind a wide area: makes its namespaces and devices, forwards packets, removes it all.

    python -m nearcast.lab.wan.emulator FOLDER

Started by `lifecycle.start`, which gives it the area's record in a folder and the lock on it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import msgspec

from nearcast.lab.wan import control_socket, namespaces
from nearcast.lab.wan.area import AreaRecord
from nearcast.lab.wan.forwarder import Forwarder
from nearcast.lab.wan.lifecycle import READY

__all__ = ["main"]


def main(folder: Path) -> None:
    """Emulate the area of a folder until it is signalled, or until the process that leased it is gone."""
    (folder / "pid").write_text(str(os.getpid()))
    record = msgspec.json.decode((folder / "record.json").read_bytes(), type=AreaRecord)
    # A signal does not interrupt the loop's sleep; the byte that Python writes to this pipe does.
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        namespaces.create(record.namespaces())
        devices = [
            namespaces.open_tun(namespace, f"{address}/16")
            for namespace, address in zip(record.namespaces(), record.addresses(), strict=True)
        ]
        addresses = [socket.inet_aton(address) for address in record.addresses()]
        forwarder = Forwarder(record.topology, devices, addresses, record.seed)

        def end() -> None:
            forwarder.running = False

        forwarder.watch(woken, end)
        if record.leased:
            forwarder.watch(sys.stdin.fileno(), end)
        with control_socket.serve(forwarder, folder / "control"):
            _reduce_latency()
            os.write(sys.stdout.fileno(), READY)
            forwarder.run()
        for device in devices:
            os.close(device)
    finally:
        namespaces.delete(record.namespaces())
    # Not when it failed: the folder has the log.
    shutil.rmtree(folder, ignore_errors=True)


def _reduce_latency() -> None:
    """Run with real-time priority, and without pauses of the garbage collector."""
    gc.collect()
    gc.freeze()
    gc.disable()
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
