"""Decides how the replica of a topic gets what it lacks from the others. Decisions only; `repair` does the I/O.

    compare digests with one peer ─► fetch buckets that are empty here ─┐
                 ▲                 └► compare hashes of a bucket ─► fetch ┤
                 │                                                       │
                 └──────────── again, if something was fetched ◄─────────┘

A round that fetched nothing proves that this replica has all that the peer had. It only takes: the peer compares for
itself. What is lost on the way, or when one of the two dies, is found by the next round; nothing else is remembered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.site.agent.store_index import BucketDigest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "QUIET", "RETRY_PAUSE", "ROUND_PERIOD", "AskDigests", "CompareHashes", "Digests", "Event", "FetchBuckets",
    "FetchSequences", "Fetched", "Instruction", "Missing", "RepairMachine", "RoundFailed",
]  # fmt: skip

ROUND_PERIOD = 30.0
FULL_PERIOD = 3_600.0
RETRY_PAUSE = 2.0
QUIET = 3.0  # seconds after which a bucket is compared that got a message: others may not have it yet
_OVERLAP = 60.0  # a round looks back further than the last one, by this much
_FETCH_AT_ONCE = 20_000
_ROUNDS_AT_ONCE = 5
_ABSENT = 10.0  # seconds after which a copy does not wait for a peer that is not heard
_SETTLE = 1.0  # until a peer that was not heard gets all that is published here, and the other way round


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


@dataclass
class _Peer:
    heard: bool = False
    silent_since: float | None = None  # from when on it was not heard
    synced_at: float | None = None  # when the last round began that fetched nothing
    full_at: float | None = None  # the same for a round over everything
    in_sync: bool = False  # it was heard ever since
    due: float = 0.0
    fetching_rounds: int = 0  # one after the other that fetched something
    agreed: dict[int, tuple[int, int]] = field(default_factory=dict)  # digests (its, ours) known to lack nothing here


@dataclass
class _Round:
    peer: str
    began: float
    full: bool
    quiet: float
    changed_within: float
    fetched: int = 0
    next: int = 0
    work: deque[BucketDigest] = field(default_factory=deque)
    comparing: BucketDigest | None = None
    agreed: dict[int, tuple[int, int]] = field(default_factory=dict)


class RepairMachine:
    """One topic at one store. Events in, instructions out; no I/O, time is passed in.

    needed: with how many peers this replica must be in sync to have everything that was acknowledged.
    digest, floor: ask the index of this store.
    """

    def __init__(self, digest: Callable[[int], BucketDigest], floor: Callable[[], int]) -> None:
        self._digest, self._floor = digest, floor
        self._peers: dict[str, _Peer] = {}
        self._needed = self._quorum = 0
        self._round: _Round | None = None
        self._lacking: set[str] = set()  # peers whose last round fetched something or broke off after it did
        self._ready_at = 0.0
        self.fetched = 0

    @property
    def behind(self) -> bool:
        """Whether this replica lacks something, or cannot know that it does not."""
        in_sync = sum(peer.in_sync for peer in self._peers.values())
        return bool(self._lacking & self._peers.keys()) or in_sync < self._needed

    def copied_from(self, now: float) -> list[str]:
        """The peers whose messages are all here, if there is no other but those that have not been heard for long.

        This replica may be behind all the same: what was acknowledged by the others alone is where they are. So there
        must be fewer than a quorum of stores that were never compared with since this one takes all that is new.
        """
        others = [peer for peer in self._peers.values() if not peer.in_sync]
        if self._lacking & self._peers.keys() or not all(_absent(peer, now) for peer in others):
            return []
        unknown = sum(peer.synced_at is None or peer.synced_at < self._ready_at for peer in others)
        if self._quorum and unknown >= self._quorum:
            return []
        return [name for name, peer in self._peers.items() if peer.in_sync]

    def set_replicas(self, peers: Iterable[str], quorum: int) -> None:
        """Who else keeps the topic, and by how many a publication is acknowledged."""
        names, self._quorum = list(peers), quorum
        self._peers = {name: self._peers.get(name) or _Peer() for name in names}
        # q of k have it, this one perhaps not among them: of any k - q others, one does.
        self._needed = min(len(names), max(1, len(names) + 1 - quorum))
        self._lacking &= self._peers.keys()

    def returned(self, ready_at: float) -> None:
        """The store was away, or is new: it must compare again. ready_at: from when on it gets all that is new."""
        self._ready_at = ready_at
        self._round = None
        for peer in self._peers.values():
            peer.in_sync, peer.due = False, ready_at

    def rescanned(self) -> None:
        """The store was read anew, perhaps with damaged messages left out: everything is to be compared."""
        for peer in self._peers.values():
            peer.full_at, peer.due = None, 0.0

    def heard(self, names: Iterable[str], now: float) -> None:
        """Whose stores are heard from now. One that was not, or cut off from it, may have got messages meanwhile."""
        present = set(names)
        for name, peer in self._peers.items():
            if name in present and not peer.heard:
                peer.due = now + _SETTLE
            if name not in present:
                peer.in_sync = False
                peer.silent_since = now if peer.silent_since is None else peer.silent_since
            else:
                peer.silent_since = None
            peer.heard = name in present

    def is_due(self, now: float) -> bool:
        """Whether a round should begin."""
        return self._round is None and bool(self._due(now))

    def start_round(self, now: float) -> Instruction | None:
        """Begin with the peer that is due longest, if there is one and no round is under way."""
        due = self._due(now)
        if self._round is not None or not due:
            return None
        # First those that this replica is not in sync with.
        name = min(due, key=lambda name: (self._peers[name].in_sync, self._peers[name].due))
        peer = self._peers[name]
        full = peer.full_at is None or now - peer.full_at >= FULL_PERIOD or peer.synced_at is None
        within = 0.0 if full or peer.synced_at is None else now - peer.synced_at + _OVERLAP
        self._round = _Round(name, now, full, QUIET if peer.in_sync else 0.0, within)
        return self._ask(0)

    def handle(self, event: Event, now: float) -> Instruction | None:
        """The next instruction of the round; nothing at its end."""
        current = self._round
        if current is None or current.peer not in self._peers:
            self._round = None
            return None
        match event:
            case Digests(digests, floor, following):
                lowest = max(floor, self._floor())
                current.work = deque(theirs for theirs in digests if theirs.bucket >= lowest and self._differs(theirs))
                current.next = following
            case Missing(sequences, settled):
                if sequences:
                    return FetchSequences(current.peer, sequences)
                if settled:
                    self._agree(current)
            case Fetched(count):
                current.fetched += count
                self.fetched += count
                if count:
                    self._lacking.add(current.peer)
                    self._peers[current.peer].in_sync = False
                else:
                    self._agree(current)  # the peer cannot read it either
            case RoundFailed():
                self._round = None
                self._peers[current.peer].due = now + RETRY_PAUSE
                return None
        return self._go_on(current, now)

    def _due(self, now: float) -> list[str]:
        if now < self._ready_at:
            return []
        return [name for name, peer in self._peers.items() if peer.heard and peer.due <= now]

    def _go_on(self, current: _Round, now: float) -> Instruction | None:
        work = current.work
        current.comparing = None
        if work and self._digest(work[0].bucket).messages == 0:
            first = last = work.popleft()
            wanted = first.messages
            while work and wanted < _FETCH_AT_ONCE and self._digest(work[0].bucket).messages == 0:
                last = work.popleft()
                wanted += last.messages
            if first is last:
                current.comparing = first
            return FetchBuckets(current.peer, first.bucket, last.bucket)
        if work:
            current.comparing = work.popleft()
            return CompareHashes(current.peer, current.comparing.bucket)
        if current.next:
            return self._ask(current.next)
        self._finish(current, now)
        return None

    def _finish(self, current: _Round, now: float) -> None:
        peer = self._peers[current.peer]
        self._round = None
        if current.fetched:  # again, until a round finds nothing; with pauses if that does not help
            peer.fetching_rounds += 1
            peer.due = now + (0.0 if peer.fetching_rounds <= _ROUNDS_AT_ONCE else ROUND_PERIOD)
            return
        peer.fetching_rounds = 0
        self._lacking.discard(current.peer)
        peer.agreed = current.agreed if current.full else peer.agreed | current.agreed
        peer.synced_at = current.began
        peer.full_at = current.began if current.full else peer.full_at
        peer.in_sync = peer.heard and current.began >= self._ready_at
        peer.due = now + (ROUND_PERIOD if current.quiet else QUIET)

    def _ask(self, start: int) -> AskDigests:
        current = self._round
        assert current is not None
        return AskDigests(current.peer, start, current.changed_within, current.quiet)

    def _differs(self, theirs: BucketDigest) -> bool:
        """Whether a bucket must be looked at; one that was, and has not changed on either side, need not be again."""
        ours, current = self._digest(theirs.bucket), self._round
        assert current is not None
        if ours == theirs:
            return False
        pair = (theirs.digest, ours.digest)
        if self._peers[current.peer].agreed.get(theirs.bucket) == pair:
            current.agreed[theirs.bucket] = pair
            return False
        return True

    def _agree(self, current: _Round) -> None:
        """The bucket that was just compared lacks nothing, though its digests differ."""
        if current.comparing is not None:
            ours = self._digest(current.comparing.bucket)
            current.agreed[ours.bucket] = (current.comparing.digest, ours.digest)


def _absent(peer: _Peer, now: float) -> bool:
    return peer.silent_since is not None and now - peer.silent_since >= _ABSENT
