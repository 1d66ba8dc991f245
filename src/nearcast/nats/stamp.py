"""The stamp: one header that is a message's unique id and carries who published it, where and when.

Headers are expensive (three of them halve what NATS delivers), so all is packed into the one header that
stores need anyway to drop duplicates:

    Nats-Msg-Id: <publisher>~<incarnation>:<home>:<microseconds since 1970>:<number>[;<n>]

The incarnation is drawn by each client process, so that two processes of one name never make the same id;
`<publisher>~<incarnation>` is the *source*. Numbers count from 1 for each source and concrete topic. The microseconds
are the message's time, the same at every store. What is no number (`mqtt_id`) does not count. `;<n>` marks the n-th
notification made from that publication, `;d<n>` the dead letter that it became at the n-th attempt.
"""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass
from hashlib import blake2b

from nearcast.domain.topic import publisher_level

__all__ = [
    "ANONYMOUS",
    "Stamp",
    "attempt_of",
    "dead_letter_block",
    "dead_letter_id",
    "dead_letter_origin",
    "header_block",
    "is_forged",
    "is_late",
    "late_block",
    "message_time",
    "mqtt_id",
    "new_incarnation",
    "notification_id",
    "parse_stamp",
    "reason_of",
    "retry_block",
    "settled_letter",
    "settlement_block",
    "source_and_number",
    "stamp_of",
]

ANONYMOUS = b"anonymous:"
"""How the ids begin that workers give to publications of devices that send none."""

_FIELD = b"Nats-Msg-Id:"
_START = b"NATS/1.0\r\nNats-Msg-Id: "
_REASON = b"Nearcast-Reason: "
_LATE = b"Nearcast-Late: "
_SETTLED = b";settled"
_END = b"\r\n\r\n"
_PLAIN_BYTES = len(_START) + len(_END)  # of a block with an id and nothing else, besides the id
_LATEST_US = 1 << 53  # year 2255; what claims to be later has no time
_INCARNATION_LETTERS = string.digits + string.ascii_lowercase


@dataclass(frozen=True)
class Stamp:
    """What the header of a message says. number: among the publications of its source to its topic, from 1."""

    id: str
    publisher: str
    home: str
    published_us: int
    incarnation: str = ""
    number: int = 0

    @property
    def source(self) -> str:
        """The client process that published it."""
        return f"{self.publisher}~{self.incarnation}" if self.incarnation else self.publisher


def new_incarnation() -> str:
    """Tells this process from others of the same name."""
    return "".join(secrets.choice(_INCARNATION_LETTERS) for _ in range(5))


def header_block(message_id: bytes) -> bytes:
    """The NATS header block for a message id."""
    return _START + message_id + _END


def notification_id(origin: bytes, number: int) -> bytes:
    """The id of the n-th notification made from a publication: the same wherever and however often it is made."""
    return b"%b;%d" % (origin, number)


def mqtt_id(home: str, topic: str, published_us: int, sequence: str) -> bytes:
    """The id of a publication that came without one and was kept at its home, under a sequence that has gaps.

    So it is not numbered. Its source is the topic at this home, or the publisher that the topic names.
    """
    source = blake2b(f"{home}/{topic}".encode(), digest_size=4).hexdigest()
    return f"{publisher_level(topic) or 'mqtt'}~{source}:{home}:{published_us}:{sequence}".encode()


def dead_letter_block(message_id: bytes, reason: str, attempts: int = 1) -> bytes:
    """The header block of a publication that was given up: after how many attempts, and why.

    Stores keep it beside the publication, under an id of its own: each attempt that fails makes another dead letter.
    """
    line = " ".join(reason.split())[:500]
    return b"%b%b\r\n%b%b%b" % (_START, dead_letter_id(message_id, attempts), _REASON, line.encode(), _END)


def retry_block(message_id: bytes, reason: str, attempt: int) -> bytes:
    """The header block of a publication that was given up, for another attempt. The reason tells it from a late one."""
    return b"%b%b\r\n%b%d\r\n%b%b%b" % (_START, message_id, _LATE, attempt, _REASON, reason.encode(), _END)


def dead_letter_id(message_id: bytes, attempts: int) -> bytes:
    """The id of the dead letter that a publication became after so many attempts."""
    return b"%b;d%d" % (message_id, attempts)


def settlement_block(letter_id: bytes) -> bytes:
    """The header block of the message by which a dead letter is settled: retried, or dropped."""
    return header_block(letter_id + _SETTLED)


def settled_letter(settlement_id: bytes) -> bytes:
    """The id of the dead letter that a settlement is about."""
    return settlement_id.removesuffix(_SETTLED)


def dead_letter_origin(letter_id: bytes) -> tuple[bytes, int]:
    """The id of the publication that a dead letter is about, and how many attempts it has had."""
    origin, mark, attempts = letter_id.rpartition(b";d")
    return (origin, int(attempts)) if mark and attempts.isdigit() else (letter_id, 1)


def late_block(message_id: bytes, attempt: int) -> bytes:
    """The header block of a message that a store gives because it was not processed or delivered in time."""
    start = b"%b%b\r\n" % (_START, message_id) if message_id else b"NATS/1.0\r\n"
    return b"%b%b%d%b" % (start, _LATE, attempt, _END)


def attempt_of(headers: bytes) -> int:
    """The number of the attempt for which a store gave a message; 0 for one that came by itself."""
    at = headers.find(_LATE)
    if at < 0:
        return 0
    digits = headers[at + len(_LATE) : headers.index(b"\r\n", at)]
    return int(digits) if digits.isdigit() else 1


def is_late(headers: bytes, message_id: bytes) -> bool:
    """Whether a publication was sent again by its client, so that newer ones may have come before it."""
    return len(headers) > _PLAIN_BYTES + len(message_id) and attempt_of(headers) > 0


def reason_of(headers: bytes) -> str:
    """Why a dead letter is one, or nothing."""
    at = headers.find(_REASON)
    return headers[at + len(_REASON) : headers.index(b"\r\n", at)].decode() if at >= 0 else ""


def stamp_of(headers: bytes) -> bytes:
    """The message id in a raw header block, or nothing when there is none."""
    if headers.startswith(_START):  # a block that we wrote: no other field comes first
        return headers[len(_START) : headers.index(b"\r\n", len(_START))]
    at = headers.find(_FIELD)
    if at < 0:
        return b""
    return headers[at + len(_FIELD) : headers.index(b"\r\n", at)].strip()


def message_time(message_id: bytes) -> int:
    """The microseconds in an id, without taking the rest apart; 0 when there are none."""
    parts = message_id.rsplit(b":", 2)
    if len(parts) == 3 and parts[1].isdigit() and len(parts[1]) <= 16:
        us = int(parts[1])
        return us if us < _LATEST_US else 0
    return 0


def is_forged(topic: str, message_id: bytes) -> bool:
    """Whether the id of a publication names another publisher than its topic does (`gps.@car7`).

    Who publishes without an id of Nearcast's (an MQTT device) names nobody.
    """
    publisher = publisher_level(topic)
    return bool(publisher) and parse_stamp(message_id).publisher not in ("", ANONYMOUS[:-1].decode(), publisher)


def source_and_number(message_id: bytes) -> tuple[str, int] | None:
    """What tells a publication from the others of its topic; nothing for an id that Nearcast did not make."""
    parts = message_id.split(b":")
    if len(parts) != 4 or not parts[3].isdigit():
        return None
    return str(parts[0], "utf-8", "replace"), int(parts[3])


def parse_stamp(message_id: bytes) -> Stamp:
    """Take a message id apart. One that Nearcast did not make is an id and nothing more."""
    text = message_id.decode("utf-8", "replace")
    parts = text.partition(";")[0].split(":")
    if len(parts) != 4 or not parts[2].isdecimal():
        return Stamp(text, "", "", 0)
    publisher, _, incarnation = parts[0].partition("~")
    number = int(parts[3]) if parts[3].isdecimal() else 0
    return Stamp(text, publisher, parts[1], int(parts[2]), incarnation, number)
