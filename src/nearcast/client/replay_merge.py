"""Merges past and live messages: decides which to deliver from where, with no gap and no duplicate.

Live messages are held while the past is read. A publisher's messages arrive in order on both ways, so once the last
past message of a publisher is also among the held ones, all its later ones are, too. Until that is so for everybody who
published meanwhile, the past is read on: a message that came before the subscription had reached every site is in a
store, though it never came live.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.message import Message

__all__ = ["ReplayMerge"]


class ReplayMerge:
    """Events in (`live`, `past`, `caught_up`), decisions out. No I/O, no clock."""

    def __init__(self, held: int) -> None:
        """held: how many live messages to keep; older ones are in the store and will be read from there."""
        self._held: deque[Message] = deque(maxlen=held)
        self._held_ids: dict[str, None] = {}
        self._delivered: set[str] = set()
        self._latest: dict[str, str] = {}
        self._caught_up = False

    def live(self, message: Message) -> None:
        """A live message came while the past is being read."""
        if len(self._held) == self._held.maxlen:
            self._held_ids.pop(self._held[0].id, None)
        self._held.append(message)
        self._held_ids[message.id] = None

    def past(self, message: Message) -> bool:
        """A past message was read; whether to deliver it."""
        if message.id in self._delivered:
            return False
        self._delivered.add(message.id)
        if self._caught_up:
            self._latest[message.publisher] = message.id
        return True

    def caught_up(self) -> None:
        """The end of the past was reached for the first time; what comes from now on was stored while we were live."""
        self._caught_up = True

    @property
    def joined(self) -> bool:
        """Whether everybody's last past message was also seen live."""
        return self._caught_up and all(message_id in self._held_ids for message_id in self._latest.values())

    def delivered_ids(self) -> list[bytes]:
        """Of the past messages."""
        return [message_id.encode() for message_id in self._delivered if message_id]

    def finish(self) -> list[Message]:
        """The held messages that were not delivered from the past, in the order they came."""
        fresh = [message for message in self._held if message.id not in self._delivered]
        self._held.clear()
        return fresh
