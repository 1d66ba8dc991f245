"""What the machine of a repair is told, and what it says to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.site.agent.store_index import BucketDigest

__all__ = [
    "AskDigests", "CompareHashes", "Digests", "Event", "FetchBuckets", "FetchSequences", "Fetched", "Instruction",
    "Missing", "RoundFailed",
]  # fmt: skip


@dataclass(frozen=True)
class AskDigests:
    """Instruction: ask a peer for digests. changed_within, quiet: seconds, see `DigestsRequest`."""

    peer: str
    start: int
    changed_within: float
    quiet: float


@dataclass(frozen=True)
class FetchBuckets:
    """Instruction: fetch all messages of these buckets from a peer."""

    peer: str
    first: int
    last: int


@dataclass(frozen=True)
class CompareHashes:
    """Instruction: compare the messages of a bucket."""

    peer: str
    bucket: int


@dataclass(frozen=True)
class FetchSequences:
    """Instruction: fetch these messages of a peer."""

    peer: str
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class Digests:
    """Event: a peer's digests; floor and next as in `DigestsAnswer`."""

    digests: Sequence[BucketDigest]
    floor: int
    next: int = 0


@dataclass(frozen=True)
class Missing:
    """Event: the peer's sequences of messages in a bucket that are not here. settled: no message is too new to tell."""

    sequences: tuple[int, ...]
    settled: bool = True


@dataclass(frozen=True)
class Fetched:
    """Event: so many messages were fetched and are in the index."""

    count: int


@dataclass(frozen=True)
class RoundFailed:
    """Event: the peer did not answer, or this store did not take what it gave."""

    reason: str


Event = Digests | Missing | Fetched | RoundFailed
Instruction = AskDigests | FetchBuckets | CompareHashes | FetchSequences
