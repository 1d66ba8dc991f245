"""Readers and publishers of streams, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearcast.nats.connection import Connection
from nearcast.nats.stream_publisher import StreamPublisher
from nearcast.nats.streams import StreamError, StreamReader

if TYPE_CHECKING:
    from nearcast.nats.connection import Handler


class Store(Connection):
    """A connection to a store that has no messages, and takes all."""

    def __init__(self) -> None:
        super().__init__()
        self.inboxes: list[str] = []
        self.silent = False

    async def subscribe_raw(self, subject: str, handler: Handler, queue: str = "") -> None:  # type: ignore[override]
        self.inboxes.append(subject)
        self._answer = handler

    def send(self, subject: str, headers: bytes, payload: bytes, reply: str = "") -> None:
        if reply and not self.silent:
            body, status = (b"", b"NATS/1.0 404 none\r\n\r\n") if "DIRECT" in subject else (b'{"stream": "S"}', b"")
            self._answer(reply, "", body, status)


async def test_all_readers_and_publishers_of_a_connection_share_one_inbox() -> None:
    """A console or an agent makes some for a request, on a connection that lasts."""
    store = Store()
    for _ in range(3):
        assert await StreamReader(store).last("S", "s") is None
        assert await StreamPublisher(store).publish([("s", "id", b"{}"), ("s", "", b"{}")]) == 0
    assert len(store.inboxes) == 1


async def test_a_store_that_does_not_answer() -> None:
    store = Store()
    store.silent = True
    with pytest.raises(StreamError, match="stream S: the store did not answer"):
        await StreamReader(store, timeout=0.01).last("S", "s")
    with pytest.raises(StreamError, match="1 of 1 messages were not acknowledged"):
        await StreamPublisher(store, 0.01).publish([("s", "id", b"{}")])
