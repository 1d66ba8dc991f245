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


def answer(sequence: int, before: int | None, added: bytes = b"") -> tuple[bytes, bytes]:
    """An answer to a request for many messages; a store says which one it sent before."""
    own = b"NATS/1.0\r\n" + added
    tail = b"" if before is None else b"Nats-Num-Pending: 9\r\nNats-Last-Sequence: %d\r\n" % before
    stored = b"Nats-Stream: S\r\nNats-Subject: s\r\nNats-Sequence: %d\r\nNats-Time-Stamp: 2026-11-15T20:00:00Z\r\n"
    return b"{}", own + stored % sequence + tail + b"\r\n"


@pytest.mark.parametrize(
    ("sequences", "end", "lost"),
    [
        ([], 0, []),
        ([4, 5, 6], 6, []),
        ([4, 7, 9], 9, []),  # the others were removed from the stream
        ([4, 5, 6], 6, [4]),
        ([4, 5, 6], 6, [5]),
        ([4, 5, 6], 6, [6]),
        ([4, 7, 9], 9, [7]),
        ([4, 5, 6], 6, [4, 5, 6]),
    ],
)
async def test_what_was_lost_on_its_way_is_not_taken_for_removed(
    sequences: list[int], end: int, lost: list[int]
) -> None:
    answers = [answer(n, before, b"Nats-Last-Sequence: 77\r\n") for before, n in zip([0, *sequences], sequences)]  # noqa: B905

    class Half(Store):
        def send(self, subject: str, headers: bytes, payload: bytes, reply: str = "") -> None:
            for n, one in zip(sequences, answers, strict=True):
                if n not in lost:
                    self._answer(reply, "", *one)
            self._answer(
                reply, "", b"", b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: %d\r\n\r\n" % end
            )

    reader = StreamReader(Half())
    if lost:
        with pytest.raises(StreamError, match="stream S: an answer of the store was lost on its way"):
            await reader.read_raw("S", 4, 10)
        with pytest.raises(StreamError, match="lost on its way"):
            await reader.read("S", "s", 4, 10)
    else:
        assert len((await reader.read_raw("S", 4, 10)).payloads) == len(sequences)


async def test_a_store_that_does_not_say_what_it_sent_before_is_believed() -> None:
    class Old(Store):
        def send(self, subject: str, headers: bytes, payload: bytes, reply: str = "") -> None:
            for n in (4, 7, 9):
                self._answer(reply, "", *answer(n, None))
            self._answer(reply, "", b"", b"NATS/1.0 204 EOB\r\n\r\n")

    assert len((await StreamReader(Old()).read_raw("S", 4, 10)).payloads) == 3
