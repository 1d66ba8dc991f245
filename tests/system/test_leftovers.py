"""The check that every system test runs at its end does find what is left behind."""

from __future__ import annotations

import socket
import subprocess

from tests.system.conftest import left_behind


def test_a_process_and_a_socket_are_found() -> None:
    before = set(left_behind())
    with subprocess.Popen(["sleep", "60"]) as process, socket.create_server(("127.0.0.1", 0)):
        found = set(left_behind()) - before
        process.kill()
    listening, sleeping = sorted(found)
    assert sleeping == "sleep 60"
    assert listening.startswith("listening on")
    assert set(left_behind()) <= before
