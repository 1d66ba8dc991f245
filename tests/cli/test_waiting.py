"""A command whose answer does not come says what it waits for, and Ctrl-C ends it without a traceback."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nearcast.cli import app, output

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


@pytest.mark.parametrize(
    "command",
    ["site ls", "topic add a.b", "history a.b", "request a.b", "bench", "trace x-1", "dead-letters ls", "auth push"],
)
def test_an_address_that_cannot_be_one_is_refused_before_it_is_waited_for(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a busy machine a command said that it waits for the coordinator, and then that there can be none."""

    class AtOnce:
        """A timer of a machine that is so busy that the second has passed."""

        def __init__(self, seconds: float, tell: Callable[..., None], words: Any, options: Any) -> None:
            self._tell = lambda: tell(*words, **options)

        def start(self) -> None:
            self._tell()

        def cancel(self) -> None:
            """Too late."""

    monkeypatch.setattr(output.threading, "Timer", AtOnce)
    monkeypatch.setattr(sys, "argv", ["nearcast", *command.split(), "--url", "nats://127.0.0.1:99999"])
    with pytest.raises(SystemExit) as exit_code:
        app.main()
    assert exit_code.value.code == 2
    allowed = "allowed: an address such as nats://127.0.0.1:4222"
    assert capsys.readouterr().err == f"nearcast: the broker's address is 'nats://127.0.0.1:99999'; {allowed}\n"
