"""The check that every system test runs at its end does find what is left behind."""

from __future__ import annotations

import socket
import subprocess

from tests.system.conftest import left_behind


def test_a_process_and_a_socket_are_found() -> None:
    assert left_behind() == []
    with subprocess.Popen(["sleep", "60"]) as process, socket.create_server(("127.0.0.1", 0)):
        found = left_behind()
        process.kill()
    assert len(found) == 2
    assert found[0] == "sleep 60"
    assert found[1].startswith("listening on")
    assert left_behind() == []
