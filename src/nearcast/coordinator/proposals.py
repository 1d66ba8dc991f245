"""Plans that were shown and wait for an answer: what was shown is what is executed, once, and not too late."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nearcast.errors import InputError

if TYPE_CHECKING:
    from nearcast.coordinator.detectors import Anomaly
    from nearcast.coordinator.plan import Plan

__all__ = ["Proposal", "Proposals"]

_KEPT = 32


@dataclass(frozen=True)
class Proposal:
    """A plan with what it was made for. expires: Unix seconds."""

    id: str
    plan: Plan
    anomalies: tuple[Anomaly, ...]
    expires: float

    def approved(self, moves: Sequence[int] | None) -> Plan:
        """The plan with only these moves, by their places in it; all for None."""
        if moves is None:
            return self.plan
        count = len(self.plan.accepted)
        wrong = [number for number in moves if not 0 <= number < count]
        if wrong:
            raise InputError(f"plan {self.id} has {count} moves, numbered from 0; it has no move {wrong[0]}")
        return replace(self.plan, accepted=tuple(self.plan.accepted[n] for n in sorted(set(moves))))


class Proposals:
    """The last plans that were shown. valid_for: seconds. clock: Unix seconds."""

    def __init__(self, valid_for: float, clock: Callable[[], float] = time.time) -> None:
        self._valid_for, self._clock = valid_for, clock
        self._kept: dict[str, Proposal] = {}

    def add(self, plan: Plan, anomalies: Sequence[Anomaly]) -> Proposal:
        """A plan is shown."""
        made = Proposal(secrets.token_hex(4), plan, tuple(anomalies), self._clock() + self._valid_for)
        self._kept[made.id] = made
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return made

    def take(self, identity: str, moves: Sequence[int] | None = None) -> tuple[Proposal, Plan]:
        """A plan, or these moves of it, is to be executed: it is not there for a second time, unless it is refused."""
        found = self._kept.get(identity)
        if found is None:
            raise InputError(f"there is no plan {identity!r}; it was executed, or another coordinator leads now")
        if found.expires < self._clock():
            raise InputError(f"plan {identity} has expired; ask for a new one with: nearcast plan show")
        plan = found.approved(moves)
        del self._kept[identity]
        return found, plan
