"""Parses what a broker sends: messages here, at once and without a coroutine each; all else by nats-py.

nats-py matches each message against regular expressions and cuts it off its buffer piece by piece. Of what agents and
clients receive, nearly all are messages, often many to a read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.client import Client

__all__ = ["MessageParser"]

_CRLF = b"\r\n"


class MessageParser(Parser):
    """Calls `take` for each message that it knows what to do with, and nats-py for the others.

    take: with subscription id, subject, reply, payload and header block; whether it took the message.
    """

    def __init__(self, client: Client, take: Callable[[int, bytes, bytes, bytes, bytes], bool]) -> None:
        self._take = take
        self._wanted = 0  # bytes of the message that has begun to arrive
        self._resets = 0
        super().__init__(client)

    def reset(self) -> None:
        """Forget what has arrived of a message: the connection is another one."""
        super().reset()
        self._wanted = 0
        self._resets += 1

    async def parse(self, data: bytes = b"") -> None:
        """Take in what came from the socket."""
        if self.buf:
            self.buf.extend(data)
            if len(self.buf) < self._wanted:
                return
            data = bytes(self.buf)
            self.buf.clear()
        at, size, self._wanted = 0, len(data), 0
        resets = self._resets
        while at < size and resets == self._resets:
            end = data.find(_CRLF, at)
            if end < 0:
                break
            first = data[at]
            if first == 0x4D or first == 0x48:  # MSG, HMSG
                words = data[at:end].split(b" ")  # not at other white space: a subject may have a form feed
                try:
                    subject, sid, length = words[1], int(words[2]), int(words[-1])
                    headers_length = int(words[-2]) if first == 0x48 else 0
                    reply = words[3] if len(words) == (6 if first == 0x48 else 5) else b""
                except (IndexError, ValueError):
                    raise ProtocolError(f"nats: malformed message line {bytes(data[at:end])!r}") from None
                start = end + 2
                stop = start + length
                if stop + 2 > size:
                    self._wanted = stop + 2 - at
                    break
                middle = start + headers_length
                at = stop + 2
                if not self._take(sid, subject, reply, data[middle:stop], data[start:middle]):
                    await self.nc._process_msg(sid, subject, reply, data[middle:stop], data[start:middle] or None)
            else:
                line, at = data[at : end + 2], end + 2
                await super().parse(line)
                if self.buf and resets == self._resets:
                    raise ProtocolError(f"nats: unknown protocol line {line!r}")
        if at < size and resets == self._resets:
            self.buf.extend(data[at:])
