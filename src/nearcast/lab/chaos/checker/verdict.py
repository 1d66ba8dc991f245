"""The promises, and how often each was broken in a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nearcast.lab.chaos.checker.evidence import Event

EXAMPLES = 5


class Promise(StrEnum):
    """What is judged, in the order in which it is shown."""

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


LOSSES = (Promise.NEVER_STORED, Promise.NOT_PROCESSED, Promise.NOT_DELIVERED, Promise.DEAD)


@dataclass
class Verdict:
    """What was found: how often each promise was broken (with examples), each fault's row, and plain counts."""

    broken: Counter[Promise] = field(default_factory=Counter)
    examples: defaultdict[Promise, list[str]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Event] = field(default_factory=list)
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    losses: list[Event] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not self.broken

    def fields(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {"kept": self.kept, **vars(self)}

    def add(self, promise: Promise, example: str) -> None:
        """A promise was broken once."""
        self.broken[promise] += 1
        if self.broken[promise] <= EXAMPLES:
            self.examples[promise].append(example)
