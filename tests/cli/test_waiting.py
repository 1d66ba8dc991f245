"""A command whose answer does not come says what it waits for, and Ctrl-C ends it without a traceback."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

NEARCAST = [sys.executable, "-c", "from nearcast.cli import main; main()"]
INFO = b'INFO {"server_id":"S","server_name":"silent","proto":1,"max_payload":1048576,"headers":true}\r\n'


async def silent_broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts clients and pings, and answers no request."""
    writer.write(INFO)
    while line := await reader.readline():
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("command", "notice"),
    [
        ("site ls", "Waiting for the coordinator by nats://127.0.0.1:"),
        ("topic add a.b", "Waiting for the coordinator by nats://127.0.0.1:"),
        ("plan show --json", "Waiting for the coordinator by nats://127.0.0.1:"),
        ("request a.b --timeout 600", "Waiting for an answer on a.b by nats://127.0.0.1:"),
    ],
)
async def test_it_says_what_it_waits_for_and_ends_with_ctrl_c(command: str, notice: str) -> None:
    server = await asyncio.start_server(silent_broker, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, *command.split(), "--url", f"nats://127.0.0.1:{port}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(120):
            assert (await process.stderr.readline()).decode().startswith(notice)
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        server.close()
    assert (process.returncode, out, err) == (130, b"", b"")
