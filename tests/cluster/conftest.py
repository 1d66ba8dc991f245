"""A JetStream server per test process."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.stamp import header_block
from nearcast.site.servers import server_binary


@dataclass(frozen=True)
class Store:
    """A bare JetStream server without Nearcast."""

    url: str

    def run(self, action: Any) -> Any:
        """Call an async function with a connection."""

        async def connected() -> Any:
            connection = await open_connection([self.url], name="test", timeout=10)
            try:
                return await action(connection)
            finally:
                await connection.close()

        return asyncio.run(connected())

    def make_stream(self, name: str, *subjects: str, **settings: Any) -> None:
        async def make(connection: Connection) -> None:
            await connection.jetstream().add_stream(name=name, subjects=list(subjects), allow_direct=True, **settings)

        self.run(make)

    def put(self, subject: str, payloads: list[bytes], prefix: str = "id") -> None:
        """Store messages; all are stored when this returns: a stream stores in order, and the last one is confirmed."""

        async def publish(connection: Connection) -> None:
            for n, payload in enumerate(payloads):
                headers = header_block(f"{prefix}-{n}".encode()) if prefix else b""
                reply = "" if n < len(payloads) - 1 else connection.new_inbox()
                confirmed = await connection.subscribe(reply) if reply else None
                connection.send(subject, headers, payload, reply)
                if connection.backlogged:
                    await connection.wait_writable()
                if confirmed is not None:
                    await confirmed.next_msg(timeout=60)

        self.run(publish)


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    folder = Path(tempfile.mkdtemp(prefix="nearcast-store-"))
    command = [
        server_binary(),
        "-js",
        "-sd",
        str(folder),
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
        "--ports_file_dir",
        str(folder),
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Store(_address(folder, server.pid))
    finally:
        server.terminate()
        server.wait(10)
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)


def _address(folder: Path, pid: int) -> str:
    """The port that the server chose, from the file that it writes when it is ready."""
    import json

    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for found in folder.glob("*.ports"):
            with contextlib.suppress(ValueError):
                return str(json.loads(found.read_text())["nats"][0])
        time.sleep(0.02)
    raise TimeoutError(f"nats-server {pid} did not start")
