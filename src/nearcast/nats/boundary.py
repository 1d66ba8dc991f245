"""The boundary: every message that enters a process from the network is decoded here, into a struct with ranges.

What does not fit is a MalformedError to those who asked for it; a message that came by itself is counted and dropped,
with a log line that is rate-limited. Nothing that arrives may end a process, a connection or a loop.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import msgspec

from nearcast.errors import InputError

__all__ = ["DROPPED", "DroppedMessages", "Encoding", "MalformedError", "Receiver", "decode", "decoder", "drop"]

_log = logging.getLogger(__name__)
_LINE_PERIOD = 10.0  # seconds between two log lines about one kind of message
_LONGEST_REASON = 200
# Besides msgspec's own errors: text that is not UTF-8, nesting, and lengths that no memory has.
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError, MemoryError, OverflowError)
Encoding = Literal["json", "msgpack"]
T = TypeVar("T")


class MalformedError(InputError):
    """A message that is not what it should be. Its text says where, and what is allowed."""


def decode(payload: bytes, kind: type[T] | Any, encoding: Encoding = "json") -> T:
    """The payload as a value of this type, within its ranges; MalformedError otherwise."""
    return decoder(kind, encoding)(payload)  # type: ignore[no-any-return]


def decoder(kind: type[T], encoding: Encoding) -> Callable[[bytes], T]:
    """`decode` for a path that many messages take."""
    hashable: Any = kind
    return _kept_decoder(hashable, encoding)


@lru_cache(maxsize=1000)
def _kept_decoder(kind: Any, encoding: Encoding) -> Callable[[bytes], Any]:
    raw = getattr(msgspec, encoding).Decoder(kind).decode

    def decode_kind(payload: bytes) -> Any:
        try:
            return raw(payload)
        except _UNREADABLE as error:
            raise MalformedError(_reason(error)) from None

    return decode_kind


class DroppedMessages:
    """What was dropped since the process started, by what it should have been. clock: gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # when, and how many there were then

    def note(self, what: str, source: str, reason: object) -> bool:
        """Count a message, and log it unless one of its kind was logged a moment ago. Whether it was logged."""
        self.counts[what] += 1
        now, count = self._clock(), self.counts[what]
        at, before = self._logged.get(what, (-_LINE_PERIOD, 0))
        if now - at < _LINE_PERIOD:
            return False
        self._logged[what] = (now, count)
        since = f" ({count - before} since the last such line)" if count - before > 1 else ""
        _log.warning("dropped a %s on %s: %s%s", what, _shortened(source), _shortened(str(reason)), since)
        return True


DROPPED = DroppedMessages()
"""Of this process."""


def drop(what: str, source: str, reason: object) -> bool:
    """Count a message that cannot be used; it is logged now and then. Whether it was."""
    return DROPPED.note(what, source, reason)


class Receiver(Generic[T]):
    """Takes the messages of one subscription: decodes each and gives it to `take(subject, reply, value)`.

    what: the kind of message in log lines. A message that is malformed, or that `take` cannot handle, is dropped.
    """

    def __init__(
        self, what: str, kind: type[T], encoding: Encoding, take: Callable[[str, str, T], None], *, empty: bool = False
    ) -> None:
        self._what, self._kind, self._encoding, self._take, self._empty = what, kind, encoding, take, empty

    def __call__(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        if not payload and self._empty:  # "no responders" of the broker
            return
        try:
            value: T = decode(payload, self._kind, self._encoding)
        except MalformedError as error:
            drop(self._what, subject, error)
            return
        self._take(subject, reply, value)


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return _shortened(str(error) or type(error).__name__)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
