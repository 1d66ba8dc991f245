"""Marks: what workers say about publications of durable topics that they have processed. Stores keep them.

A worker that comes to a topic asks how far its publications were processed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import msgspec

from nearcast.domain.ranges import AnyTopic, Count, Hash, Text

__all__ = [
    "MOST_SOURCES",
    "Marks",
    "ProgressAnswer",
    "ProgressRequest",
    "Redelivered",
    "Settlement",
    "SourceProgress",
    "TopicMarks",
]

MOST_SOURCES = 1_000
"""Of one request for progress."""


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
            _check_ranges(flat)


class Marks(msgspec.Struct, frozen=True, array_like=True):
    """What a worker (`site/worker`) has processed since its last mark, by concrete topic, in an epoch; as msgpack."""

    epoch: Count
    worker: Text
    topics: dict[AnyTopic, TopicMarks]


class ProgressRequest(msgspec.Struct, frozen=True, array_like=True):
    """How far publications were processed. family: the topic or family; sources: concrete topics and their sources."""

    family: AnyTopic
    sources: Annotated[list[tuple[AnyTopic, Text]], msgspec.Meta(max_length=MOST_SOURCES)]


class SourceProgress(msgspec.Struct, frozen=True, array_like=True):
    """The newest numbers of a source that have marks, and those that stores have without one, as ranges."""

    marked: list[Count] = []
    unmarked: list[Count] = []

    def __post_init__(self) -> None:
        """Ranges are whole, and in order."""
        _check_ranges(self.marked)
        _check_ranges(self.unmarked)


class ProgressAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Of each source that was asked for, in that order."""

    sources: Annotated[list[SourceProgress], msgspec.Meta(max_length=MOST_SOURCES)]


def _check_ranges(flat: list[int]) -> None:
    if len(flat) % 2 or any(a > b for a, b in pairwise(flat)):
        raise ValueError("the numbers of a source are first and last of ranges, in order")
