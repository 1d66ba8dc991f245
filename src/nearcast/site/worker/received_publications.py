"""What came recently of the topics of a family, so that a publication that is handed over is not processed twice."""

from __future__ import annotations

from nearcast.nats.deduplication import RecentContents, RecentIds

__all__ = ["ReceivedOfTopic", "ReceivedPublications"]


class ReceivedOfTopic:
    """What came recently of a concrete topic: ids, and payloads without one. Nothing is kept before `remember`."""

    __slots__ = ("_ids", "_payloads")

    def __init__(self) -> None:
        self._ids: RecentIds | None = None
        self._payloads: RecentContents | None = None

    def remember(self, window: float) -> None:
        """From now on. window: the seconds for which payloads are kept."""
        self._ids, self._payloads = RecentIds(), RecentContents(window)

    def is_new(self, message_id: bytes) -> bool:
        """Whether this id comes for the first time, as far as that is remembered."""
        return self._ids is None or not self._ids.seen(message_id)

    def knows(self, message_id: bytes) -> bool:
        """Whether this id came before."""
        return self._ids is not None and message_id in self._ids

    def note_payload(self, payload: bytes, now: float) -> None:
        """A publication without an id came."""
        if self._payloads is not None:
            self._payloads.note(payload, now)

    def matches_payload(self, payload: bytes, now: float) -> bool:
        """Whether a publication without an id came like this one, and was not matched before."""
        return self._payloads is not None and self._payloads.match(payload, now)


class ReceivedPublications(dict[str, ReceivedOfTopic]):
    """By concrete topic; one that is asked for the first time is made."""

    def __init__(self) -> None:
        super().__init__()
        self._window: float | None = None

    def __missing__(self, topic: str) -> ReceivedOfTopic:
        received = self[topic] = ReceivedOfTopic()
        if self._window is not None:
            received.remember(self._window)
        return received

    def remember(self, window: float) -> None:
        """Remember what comes of all topics, from the first time that this is called."""
        if self._window is None:
            self._window = window
            for received in self.values():
                received.remember(window)
