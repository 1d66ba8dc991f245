"""A server that is killed and comes back costs the data cluster's processes a moment, not a time-out."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.suspend import suspend

from nearcast.cluster.channels.results import ResultLog, group_results
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.nats_source.blocking_connection import BlockingConnection
from nearcast.nats import subjects
from nearcast.nats.streams import StreamError, StreamNotFoundError
from nearcast.site.servers import server_binary

# A quarter of the time after which a request without an answer failed.
SOON = 8.0
STREAM, SUBJECT = subjects.channel_stream("c"), subjects.channel_results("c", "*")


class Server:
    """A JetStream server on a fixed port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._command = [server_binary(), "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(self.port)]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise TimeoutError("nats-server did not start")

    def hang(self) -> None:
        suspend(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path / "store")
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
def connection(server: Server) -> BlockingConnection:
    opened = BlockingConnection([server.url])
    opened.call(opened.connection.jetstream().add_stream(name=STREAM, subjects=[SUBJECT], allow_direct=True))
    opened.publish([(subjects.channel_results("c", "before"), "before", b"{}")])
    return opened


def seconds_after_a_kill(server: Server, work: Callable[[], object]) -> float:
    """How long work takes from the moment that the server is back, which got its requests and never answered them."""
    with ThreadPoolExecutor(1) as thread:
        server.hang()
        working = thread.submit(work)
        time.sleep(0.5)
        assert not working.done()
        server.kill()
        server.start()
        back = time.monotonic()
        working.result()
        return time.monotonic() - back


def test_a_question_is_asked_again_when_the_server_was_killed(server: Server, connection: BlockingConnection) -> None:
    found: list[Any] = []
    assert seconds_after_a_kill(server, lambda: found.append(connection.bounds(STREAM, "$JS.API"))) < SOON
    assert [(bounds.first, bounds.last) for bounds in found] == [(1, 1)]
    reader = connection.reader("$JS.API")
    read = lambda: found.append(connection.ask(lambda: reader.read_raw(STREAM, 1, 10)).payloads)  # noqa: E731
    assert seconds_after_a_kill(server, read) < SOON
    assert found[-1] == [b"{}"]
    with pytest.raises(StreamNotFoundError, match="stream nowhere does not exist"):
        connection.bounds("nowhere", "$JS.API")


def test_a_question_without_an_answer_fails_in_time(server: Server, connection: BlockingConnection) -> None:
    server.hang()
    start = time.monotonic()
    with pytest.raises(StreamError, match=r"no answer within \d"):
        connection.ask(lambda: connection.reader("$JS.API").bounds(STREAM), 1.0)
    assert time.monotonic() - start < SOON
    server.kill()
    server.start()


def test_results_are_published_once_though_the_server_is_killed_meanwhile(
    server: Server, connection: BlockingConnection, tmp_path: Path
) -> None:
    log = ResultLog(Warehouse(str(tmp_path / "warehouse")), connection, "dataset-x-1", "$JS.API")
    count, sent = 200, threading.Event()
    columns = {"channel": ["c"] * count, "key": [f"k{n}" for n in range(count)], "row": ["{}"] * count}
    rows = pa.table(columns | {"position": pa.nulls(count, pa.int32())})
    stored = log.store(1, group_results(rows, 1, 1))
    assert seconds_after_a_kill(server, lambda: sent.set() if log.publish(stored) == count else None) < 2 * SOON
    assert sent.is_set()
    reader = connection.reader("$JS.API")
    entries = connection.ask(lambda: reader.read_range(STREAM, SUBJECT, 2, 1000))
    assert sorted(entry.id.decode() for entry in entries) == sorted(f"c:k{n}:1:1" for n in range(count))
