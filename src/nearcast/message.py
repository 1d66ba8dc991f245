"""The message as subscribers and processors see it. Nothing is parsed until it is asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from nearcast.codec import JSON
from nearcast.errors import NearcastError
from nearcast.nats.stamp import Stamp, attempt_of, parse_stamp, reason_of, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import typing_extensions

    T_co = typing_extensions.TypeVar("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)  # its default is for type checkers

__all__ = ["Message", "PayloadError", "T_co"]


class PayloadError(NearcastError, ValueError):
    """A payload that the codec cannot read, or that is not of the type asked for.

    message: the one it came with; its `payload` has the bytes.
    """

    def __init__(self, message: Message, reason: Exception) -> None:
        super().__init__(f"message {message.id or '(no id)'} of topic {message.topic}: {reason}")
        self.message = message


class Message(msgspec.Struct, Generic[T_co], gc=False, eq=False):
    """A publication or a notification. `Message[Reading]`: one whose data was decoded and validated as that type.

    topic:   what it was published to
    payload: the bytes as they came
    """

    # gc=False: the garbage collector would look at all that wait in buffers again and again. No message is part of a
    # cycle: it refers to what it was made of, to what a codec made of that, and to the codec.
    topic: str
    payload: bytes
    _headers: bytes = b""
    _decode: Callable[[bytes], Any] = JSON.decode
    _data: Any = msgspec.UNSET
    _stamp: Stamp | None = None

    @property
    def data(self) -> T_co:
        """The payload read by the codec, once; JSON by default."""
        if self._data is msgspec.UNSET:
            try:
                self._data = self._decode(self.payload)
            except Exception as error:
                raise PayloadError(self, error) from error
        found: T_co = self._data
        return found

    @property
    def stamp(self) -> Stamp:
        """All that the header says, parsed once."""
        if self._stamp is None:
            self._stamp = parse_stamp(stamp_of(self._headers))
        return self._stamp

    @property
    def id(self) -> str:
        """Unique for each publication and each notification; empty for devices that send none (MQTT)."""
        return self.stamp.id

    @property
    def publisher(self) -> str:
        """The client that published it, or whose publication a notification was made from."""
        return self.stamp.publisher

    @property
    def home(self) -> str:
        """The site its publisher was connected to."""
        return self.stamp.home

    @property
    def published(self) -> datetime | None:
        """When it (or the publication it was made from) was published, by the publisher's clock."""
        us = self.stamp.published_us
        try:
            return datetime.fromtimestamp(us / 1e6, UTC) if us else None
        except (ValueError, OverflowError):  # a publisher writes what it likes, such as the year 30000
            return None

    @property
    def late(self) -> bool:
        """Whether it may come behind newer ones of its publisher: a store gave it because it was not processed (or not
        delivered to this subscriber) in time, or its worker let it wait for older ones."""
        return self.attempt > 0

    @property
    def attempt(self) -> int:
        """Which attempt to process it this is, when it is late; 0 for a message that came by itself, in its turn."""
        return attempt_of(self._headers)

    @property
    def reason(self) -> str:
        """For a dead letter: why its processor could not handle it."""
        return reason_of(self._headers)

    def to_dict(self) -> dict[str, Any]:
        """What commands and REST print: its payload as text, its time as ISO 8601."""
        return {
            "topic": self.topic,
            "id": self.id,
            "publisher": self.publisher,
            "home": self.home,
            "published": self.published.isoformat() if self.published else None,
            "late": self.late,
            "payload": self.payload.decode(errors="backslashreplace"),
        }

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, id={self.id!r}, {len(self.payload)} bytes)"
