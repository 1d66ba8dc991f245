"""The promises, and how often each was broken in a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearcast.lab.chaos.checker.evidence import Event

EXAMPLES = 5

# Promises, in the order in which they are shown.
NEVER_STORED = "acknowledged, in fewer stores than the quorum"
NOT_PROCESSED = "stored, not processed"
NOT_DELIVERED = "processed, not delivered"
DEAD = "acknowledged, a dead letter"
TWICE = "delivered twice"
STORED_TWICE = "stored twice"
DISORDER = "out of order"
PROCESSED_OUT_OF_ORDER = "processed out of order, in a topic that promises order"
TWO_OWNERS = "two owners of an epoch"
STORE_LACKS = "a replica lacks it"
HISTORY_LACKS = "history lacks it"
REPLICAS = "fewer replicas than asked for"
STALLED = "no progress beside a fault"
NOT_RECOVERED = "no delivery after a fault"
UNREAD = "a store or history could not be read"
NO_EFFECT = "a fault had no effect"
NOT_JUDGED = "nothing was acknowledged: there is nothing to judge"
LOSSES = (NEVER_STORED, NOT_PROCESSED, NOT_DELIVERED, DEAD)
PROMISES = (
    *LOSSES, TWICE, STORED_TWICE, DISORDER, PROCESSED_OUT_OF_ORDER, TWO_OWNERS, STORE_LACKS, HISTORY_LACKS, REPLICAS,
    STALLED, NOT_RECOVERED, UNREAD, NO_EFFECT, NOT_JUDGED,
)  # fmt: skip


@dataclass
class Verdict:
    """What was found: how often each promise was broken (with examples), each fault's row, and plain counts."""

    broken: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    faults: list[Event] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    losses: list[Event] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken

    def add(self, promise: str, example: str) -> None:
        """A promise was broken once."""
        self.broken[promise] = self.broken.get(promise, 0) + 1
        shown = self.examples.setdefault(promise, [])
        if len(shown) < EXAMPLES:
            shown.append(example)
