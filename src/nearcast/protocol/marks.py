"""Marks: what workers say about publications of durable topics that they have processed. Stores keep them."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from nearcast.domain.ranges import AnyTopic, Count, Hash, Text

__all__ = ["Marks", "Redelivered", "Settlement", "TopicMarks"]


class Redelivered:
    """What a worker answers to a redelivery.

    TAKEN: it is being processed now. KNOWN: it was known and a mark follows, or there is no room for it now.
    LATER: the mark of the attempt before is not out yet (dead letters); ask again in a moment.
    """

    TAKEN = b"taken"
    KNOWN = b"known"
    LATER = b"later"


class Settlement:
    """Why a dead letter is not one any more: the payload of a settlement."""

    RETRIED = b"retried"
    DROPPED = b"dropped"


class TopicMarks(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The processed publications of one concrete topic.

    sources: of each source the numbers, as first and last of ranges, one after the other.
    others: `id_hash` of each publication whose id Nearcast did not make, or that has none; each time it was.
    """

    sources: dict[Text, list[Count]] = {}
    others: list[Hash] = []

    def __post_init__(self) -> None:
        """Ranges are whole, and in order."""
        for flat in self.sources.values():
            if len(flat) % 2 or any(a > b for a, b in pairwise(flat)):
                raise ValueError("the numbers of a source are first and last of ranges, in order")


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """What a worker (`site/worker`) has processed since its last mark, by concrete topic, in an epoch; as msgpack."""

    epoch: Count
    worker: Text
    topics: dict[AnyTopic, TopicMarks]
