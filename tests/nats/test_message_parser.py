"""The parser gives the same messages as nats-py's, however the bytes are cut. No server runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from nearcast.nats.message_parser import MessageParser

Taken = tuple[Any, ...]
NAMES = st.text("abcXYZ$_>*.", min_size=1, max_size=12)


class _Client:
    """Notes what a parser tells its client."""

    def __init__(self) -> None:
        self.told: list[Taken] = []
        self.parser: Parser | None = None

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.told.append(("message", sid, bytes(subject), bytes(reply), data, headers or b""))

    async def _process_ping(self) -> None:
        self.told.append(("ping",))

    async def _process_pong(self) -> None:
        self.told.append(("pong",))

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.told.append(("info", info))

    async def _process_err(self, error: str) -> None:
        self.told.append(("error", error))
        if self.parser is not None:
            self.parser.reset()


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message as a broker sends it."""
    words = [draw(NAMES), str(draw(st.integers(1, 999)))]
    if draw(st.booleans()):
        words.append(draw(NAMES))
    payload = draw(st.one_of(st.binary(max_size=60), st.just(b"MSG a 1 2\r\nPING\r\n")))
    if draw(st.booleans()):
        headers = b"NATS/1.0\r\n" + draw(st.binary(max_size=20)) + b"\r\n\r\n"
        line = " ".join(["HMSG", *words, str(len(headers)), str(len(headers) + len(payload))])
        return line.encode() + b"\r\n" + headers + payload + b"\r\n"
    return " ".join(["MSG", *words, str(len(payload))]).encode() + b"\r\n" + payload + b"\r\n"


OTHERS = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'odd'\r\n", b'INFO {"a": 1}\r\n'])


@given(st.lists(st.one_of(messages(), messages(), OTHERS), max_size=12), st.lists(st.integers(0, 400), max_size=8))
async def test_the_same_is_told_as_by_nats_py(sent: list[bytes], cuts: list[int]) -> None:
    stream, edges = b"".join(sent), sorted(cuts)
    pieces = [stream[start:end] for start, end in zip([0, *edges], [*edges, len(stream)], strict=True)]
    ours, theirs = _Client(), _Client()

    def take(sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        if sid % 2:
            ours.told.append(("message", sid, subject, reply, data, headers))
        return bool(sid % 2)

    parsers = MessageParser(ours, take), Parser(theirs)  # type: ignore[arg-type]
    for piece in pieces:
        for parser in parsers:
            await parser.parse(piece)
    assert ours.told == theirs.told


async def test_what_came_behind_an_error_that_ended_the_connection_is_dropped() -> None:
    client = _Client()
    client.parser = MessageParser(client, lambda *message: False)  # type: ignore[arg-type]
    await client.parser.parse(b"-ERR 'Stale Connection'\r\nMSG a 1 1\r\nx\r\nMSG b")
    await client.parser.parse(b"MSG c 1 1\r\nx\r\n")
    assert [told[0] for told in client.told] == ["error", "message"]
    assert client.told[1][2] == b"c"


@pytest.mark.parametrize("line", [b"MSG\r\n", b"HMSG a b 1 2\r\n", b"MSG a 1 -\r\n", b"NONSENSE\r\n"])
async def test_what_is_no_protocol_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        await MessageParser(_Client(), lambda *message: False).parse(line)  # type: ignore[arg-type]


async def test_a_subject_may_have_white_space_other_than_a_space() -> None:
    """A broker takes `pub.a<form feed>b`; nats-py, and we, ended the connection of every subscriber over it."""
    client = _Client()
    parser = MessageParser(client, lambda *message: False)  # type: ignore[arg-type]
    await parser.parse(b"MSG pub.a\x0cb\x0bc 1 _INBOX.\x0c 1\r\nx\r\nHMSG a\x0c 1 12 13\r\nNATS/1.0\r\n\r\nx\r\n")
    assert [told[2:4] for told in client.told] == [(b"pub.a\x0cb\x0bc", b"_INBOX.\x0c"), (b"a\x0c", b"")]
