"""The process that runs user code, and nothing else: no event loop, no connection.

It reads tickets (topic, message number) from one pipe, finds the message in the topic's spool, calls the processor and
writes the outcome to another pipe, one write per message. Should it die, all that it finished has been told, and the
one message it had in hand is the first without an outcome.
"""

from __future__ import annotations

import inspect
import os
import struct
import sys
from pathlib import Path
from typing import Any

import msgspec

from nearcast.codec import JSON
from nearcast.message import Message
from nearcast.nats.stamp import header_block
from nearcast.processors import ProcessorError, ProcessorSpec, SpoolView, load_processors
from nearcast.site.worker.spool import Spool

__all__ = ["ANNOUNCE", "DONE", "FAILED", "LENGTH", "OUTCOME", "READY", "TICKET", "Announcement", "Setup"]

TICKET = struct.Struct(
    "<IQ"
)  # topic number, message number; ANNOUNCE instead of a topic number: length of what follows
OUTCOME = struct.Struct("<BIQI")  # kind, topic number, message number, length of what follows
LENGTH = struct.Struct("<I")
ANNOUNCE = 0xFFFFFFFF
DONE, FAILED, READY = 0, 1, 2


class Setup(msgspec.Struct, frozen=True):
    """What a runner needs to start."""

    modules: list[str]
    search_path: list[str]


class Announcement(msgspec.Struct, frozen=True):
    """A topic the runner has not met: its number, name, spool file and the processor that handles it.

    Without a spool file: a topic that has gone elsewhere, to be let go of.
    """

    number: int
    topic: str
    spool: str
    pattern: str


class _Topic:
    """A topic with its processor, ready to be called."""

    def __init__(self, announcement: Announcement, spec: ProcessorSpec, call: Any) -> None:
        self.name, self.call = announcement.topic, call
        self.spool = Spool.open_for_reading(Path(announcement.spool))
        self.view = SpoolView(self.spool, self.name, spec.spool)

    def process(self, number: int) -> list[bytes]:
        self.spool.refresh()
        self.view.advance(number)
        message_id, payload = self.spool.read(number)
        outcome = self.call(Message(self.name, payload, header_block(message_id)), self.view)
        if outcome is None:
            return []
        if inspect.iscoroutine(outcome) or inspect.isasyncgen(outcome):
            outcome = _finish(outcome)
            if outcome is None:
                return []
        values = outcome if inspect.isgenerator(outcome) or isinstance(outcome, _Several) else (outcome,)
        return [value if isinstance(value, bytes) else JSON.encode(value) for value in values]


class _Several(list[Any]):
    """What an async generator yielded."""


def _finish(outcome: Any) -> Any:
    import asyncio  # only async processors pay for an event loop

    async def collect() -> Any:
        return _Several([value async for value in outcome]) if inspect.isasyncgen(outcome) else await outcome

    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
    return _loop.run_until_complete(collect())


_loop: Any = None


def run(setup: Setup, tickets: int, outcomes: int) -> None:
    """Load the processors, say so, then work until the ticket pipe closes."""
    processors = {
        spec.pattern: (spec, target) for spec, target in load_processors(*msgspec.structs.astuple(setup)).items()
    }
    calls: dict[str, Any] = {}
    topics: dict[int, _Topic] = {}
    promises = msgspec.json.encode([spec for spec, _ in processors.values()])
    _write_all(outcomes, OUTCOME.pack(READY, 0, 0, len(promises)) + promises)
    buffer = bytearray()
    while chunk := os.read(tickets, 1 << 16):
        buffer += chunk
        at, end = 0, len(buffer)
        while end - at >= TICKET.size:
            topic_number, number = TICKET.unpack_from(buffer, at)
            if topic_number == ANNOUNCE:
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
                spec, target = processors[announcement.pattern]
                if spec.pattern not in calls:
                    calls[spec.pattern] = _instance(target)
                topics[announcement.number] = _Topic(announcement, spec, calls[spec.pattern])
                continue
            at += TICKET.size
            try:
                body = b"".join(LENGTH.pack(len(n)) + n for n in topics[topic_number].process(number))
                kind = DONE
            except Exception as error:
                kind, body = FAILED, f"{type(error).__name__}: {error}".encode()[:1000]
            _write_all(outcomes, OUTCOME.pack(kind, topic_number, number, len(body)) + body)
        del buffer[:at]


def _instance(target: Any) -> Any:
    if not inspect.isclass(target):
        return target
    made: Any = target()
    return made.process


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
