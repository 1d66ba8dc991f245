"""The process that runs user code, and nothing else: no event loop, no connection.

It reads tickets (topic, message number) from one pipe, finds the message in the topic's spool, calls the processor and
writes the outcome to another pipe, one write per message. Should it die, all that it finished has been told, and the
one message it was processing is the first without an outcome.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.processors import Processor, ProcessorCall, ProcessorError, failure_reason, load_processors
from nearcast.site.worker.spool import Spool

__all__ = [
    "DONE", "FAILED", "OUTCOME", "READY", "TICKET", "Announcement", "Setup", "announcement_frame",
    "pack_notifications", "unpack_notifications",
]  # fmt: skip

# Topic number, message number, attempt (0: not late); _ANNOUNCE instead of a topic number: length of what follows.
TICKET = struct.Struct("<IQH")
OUTCOME = struct.Struct("<BIQI")  # kind, topic number, message number, length of what follows
_ANNOUNCE = 0xFFFFFFFF
DONE, FAILED, READY = 0, 1, 2
_LENGTH = struct.Struct("<I")


class Announcement(msgspec.Struct, frozen=True):
    """A topic that is new to the process: its number, name, spool file and the processor that handles it.

    Without a spool file: a topic that has gone elsewhere, to be let go of.
    """

    number: int
    topic: str
    spool: str
    pattern: str


def announcement_frame(announcement: Announcement) -> bytes:
    """An announcement as it goes through the pipe of tickets."""
    body = msgspec.json.encode(announcement)
    return TICKET.pack(_ANNOUNCE, len(body), 0) + body


def pack_notifications(notifications: Iterable[bytes]) -> bytes:
    """The notifications of one message, one after the other."""
    return b"".join([_LENGTH.pack(len(one)) + one for one in notifications])


def unpack_notifications(body: bytes) -> list[bytes]:
    """What `pack_notifications` packed."""
    found, at = [], 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        found.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return found


class Setup(msgspec.Struct, frozen=True):
    """What the process needs to start."""

    modules: list[str]
    search_path: list[str]
    limits: ProcessorLimits = ProcessorLimits()


class _Topic:
    """A topic with its processor, ready to be called."""

    def __init__(self, announcement: Announcement, processor: Processor, call: Any) -> None:
        self.spool = Spool.open_for_reading(Path(announcement.spool))
        self._call = ProcessorCall(processor, call, self.spool, announcement.topic)

    def process(self, number: int, attempt: int) -> list[bytes]:
        self.spool.refresh()
        return self._call.process(number, attempt)


def run(setup: Setup, tickets: int, outcomes: int) -> None:
    """Load the processors, say so, then work until the ticket pipe closes."""
    processors = {one.spec.pattern: one for one in load_processors(setup.modules, setup.search_path)}
    calls: dict[str, Any] = {}
    topics: dict[int, _Topic] = {}
    promises = msgspec.json.encode([one.spec for one in processors.values()])
    _write_all(outcomes, OUTCOME.pack(READY, 0, 0, len(promises)) + promises)
    buffer = bytearray()
    while chunk := os.read(tickets, 1 << 16):
        buffer += chunk
        at, end = 0, len(buffer)
        while end - at >= TICKET.size:
            topic_number, number, attempt = TICKET.unpack_from(buffer, at)
            if topic_number == _ANNOUNCE:
                while end - at < TICKET.size + number:
                    buffer += os.read(tickets, 1 << 16)
                    end = len(buffer)
                start = at + TICKET.size
                announcement = msgspec.json.decode(buffer[start : start + number], type=Announcement)
                at = start + number
                if not announcement.spool:
                    if announcement.number in topics:
                        topics.pop(announcement.number).spool.close()
                    continue
                processor = processors[announcement.pattern]
                if announcement.pattern not in calls:
                    calls[announcement.pattern] = processor.callable()
                topics[announcement.number] = _Topic(announcement, processor, calls[announcement.pattern])
                continue
            at += TICKET.size
            try:
                body = pack_notifications(topics[topic_number].process(number, attempt))
                kind = DONE
            except Exception as error:
                kind, body = FAILED, failure_reason(error).encode()[:1000]
            _write_all(outcomes, OUTCOME.pack(kind, topic_number, number, len(body)) + body)
        del buffer[:at]


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def main() -> None:
    """Entry point: setup as JSON, and the two pipes' descriptors, on the command line."""
    try:
        run(msgspec.json.decode(sys.argv[1], type=Setup), int(sys.argv[2]), int(sys.argv[3]))
    except ProcessorError as error:
        sys.exit(str(error))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(0)


if __name__ == "__main__":
    main()
