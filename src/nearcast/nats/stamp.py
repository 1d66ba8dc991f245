"""The stamp: one header that is a message's unique id and carries who published it, where and when.

Headers are expensive (three of them halve what NATS delivers), so all is packed into the one header that
stores need anyway to drop duplicates:

    Nats-Msg-Id: <publisher>~<incarnation>:<home>:<microseconds since 1970>:<number>[-<back>.<count>][;<n>]

The incarnation is drawn by each client process, so that two processes of one name never make the same id;
`<publisher>~<incarnation>` is the *source*. Numbers count from 1 for each source and concrete topic. The microseconds
are the message's time, the same at every store. What is no number (`mqtt_id`) does not count. `-<back>.<count>` says
that the client gave up publications before this one: as many as `count`, the first of them `back` numbers before it.
`;<n>` marks the n-th notification made from that publication, `;d<n>` the dead letter that it became at the n-th
attempt.
"""

from __future__ import annotations

import re
import secrets
import string
from dataclasses import dataclass
from hashlib import blake2b

from nearcast.domain.topic import publisher_level

__all__ = [
    "ANONYMOUS",
    "RESERVED_BYTES",
    "Stamp",
    "attempt_of",
    "dead_letter_block",
    "dead_letter_id",
    "dead_letter_origin",
    "given_up",
    "header_block",
    "is_forged",
    "is_late",
    "late_block",
    "message_time",
    "mqtt_id",
    "new_incarnation",
    "notification_id",
    "number_field",
    "parse_stamp",
    "publication_key",
    "reason_of",
    "retry_block",
    "settled_letter",
    "settlement_block",
    "source_and_number",
    "stamp_of",
]

# What a message gains on its way (its stamp, the frame of a history page) must fit under the broker's limit, too.
# Brokers and tokens allow this much more than what clients may send.
RESERVED_BYTES = 4096

ANONYMOUS = b"anonymous:"
"""How the ids begin that workers give to publications of devices that send none."""

_NO_SOURCE = ANONYMOUS[:-1]
_FIELD = b"Nats-Msg-Id:"
_START = b"NATS/1.0\r\nNats-Msg-Id: "
_ID_AT = len(_START)
_REASON = b"Nearcast-Reason: "
_LATE = b"Nearcast-Late: "
_SETTLED = b";settled"
_END = b"\r\n\r\n"
_PLAIN_BYTES = len(_START) + len(_END)  # of a block with an id and nothing else, besides the id
_LATEST_US = 1 << 53  # year 2255; what claims to be later has no time
_DIGITS = 15  # of a number at most: below 2**53, which is what may travel
_LONGEST_TIME = 19  # digits of microseconds
_LONGEST_ID = 1024  # bytes; ours are below 200. Pages, cursors and marks carry ids, and are limited
_INCARNATION_LETTERS = string.digits + string.ascii_lowercase
_NUMBER_WITH_GIVEN_UP = re.compile(rb"(\d{1,15})-(\d{1,15})\.(\d{1,15})")


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


def number_field(number: int, first: int, last: int) -> str:
    """The last field of the id of a publication whose client gave up the numbers from `first` to `last` before it."""
    return f"{number}-{number - first}.{last - first + 1}"


def given_up(message_id: bytes) -> tuple[int, int] | None:
    """The first and the last of the numbers that the client of a publication says it gave up; mostly nothing."""
    found = _NUMBER_WITH_GIVEN_UP.fullmatch(message_id.rpartition(b":")[2])
    if found is None:
        return None
    number, back, count = map(int, found.groups())
    return (number - back, number - back + count - 1) if 0 < count <= back < number else None


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
    known = mark and attempts.isdigit() and len(attempts) <= _DIGITS
    return (origin, int(attempts)) if known else (letter_id, 1)


def late_block(message_id: bytes, attempt: int) -> bytes:
    """The header block of a message that a store gives because it was not processed or delivered in time."""
    start = b"%b%b\r\n" % (_START, message_id) if message_id else b"NATS/1.0\r\n"
    return b"%b%b%d%b" % (start, _LATE, attempt, _END)


def attempt_of(headers: bytes) -> int:
    """The number of the attempt for which a store gave a message; 0 for one that came by itself."""
    at = headers.find(_LATE)
    if at < 0:
        return 0
    digits = _rest_of_line(headers, at + len(_LATE))
    return int(digits) if digits.isdigit() and len(digits) <= _DIGITS else 1


def is_late(headers: bytes, message_id: bytes) -> bool:
    """Whether a publication was sent again by its client, so that newer ones may have come before it."""
    return len(headers) > _PLAIN_BYTES + len(message_id) and attempt_of(headers) > 0


def reason_of(headers: bytes) -> str:
    """Why a dead letter is one, or nothing."""
    at = headers.find(_REASON)
    return _rest_of_line(headers, at + len(_REASON)).decode(errors="replace") if at >= 0 else ""


def stamp_of(headers: bytes) -> bytes:
    """The message id in a raw header block, or nothing when there is none, or one that is too long to be an id."""
    if headers.startswith(_START):  # a block that we wrote: no other field comes first
        end = headers.find(b"\r\n", _ID_AT)
        found = headers[_ID_AT:end] if end >= 0 else headers[_ID_AT:]
    else:
        at = headers.find(_FIELD)
        if at < 0:
            return b""
        found = _rest_of_line(headers, at + len(_FIELD)).strip()
    return found if len(found) <= _LONGEST_ID else b""


def _rest_of_line(headers: bytes, at: int) -> bytes:
    """Up to the end of the line, or of the block: a broker does not check how a publisher ends it."""
    end = headers.find(b"\r\n", at)
    return headers[at:end] if end >= 0 else headers[at:]


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
    if len(parts) != 4 or (number := _number(parts[3])) is None:
        return None
    return str(parts[0], "utf-8", "replace"), number


def publication_key(message_id: bytes) -> tuple[bytes, int] | None:
    """The source, as it stands in the id, and the number; nothing for an id that tells none, or a worker gave."""
    parts = message_id.split(b":")
    if len(parts) != 4 or parts[0] == _NO_SOURCE or (number := _number(parts[3])) is None:
        return None
    return parts[0], number


def _number(field: bytes) -> int | None:
    if field.isdigit() and len(field) <= _DIGITS:
        return int(field)
    found = _NUMBER_WITH_GIVEN_UP.fullmatch(field)
    return int(found[1]) if found is not None else None


def parse_stamp(message_id: bytes) -> Stamp:
    """Take a message id apart. One that Nearcast did not make is an id and nothing more."""
    text = message_id.decode("utf-8", "replace")
    parts = text.partition(";")[0].split(":")
    if len(parts) != 4 or not parts[2].isdecimal() or len(parts[2]) > _LONGEST_TIME:
        return Stamp(text, "", "", 0)
    publisher, _, incarnation = parts[0].partition("~")
    return Stamp(text, publisher, parts[1], int(parts[2]), incarnation, _number(parts[3].encode()) or 0)
