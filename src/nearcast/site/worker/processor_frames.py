"""What a worker and the process that runs user code say to each other, through two pipes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ANNOUNCE", "DONE", "FAILED", "OUTCOME", "READY", "TICKET", "Announcement", "announcement_frame",
    "pack_notifications", "unpack_notifications",
]  # fmt: skip

# Topic number, message number, attempt (0: not late); ANNOUNCE instead of a topic number: length of what follows.
TICKET = struct.Struct("<IQH")
OUTCOME = struct.Struct("<BIQI")  # kind, topic number, message number, length of what follows
ANNOUNCE = 0xFFFFFFFF
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
    return TICKET.pack(ANNOUNCE, len(body), 0) + body


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
