"""How long a topic was above its bound after a change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nearcast.lab.scenarios.ledger import DeliveryLedger
    from nearcast.lab.scenarios.scenario import Scenario, ScheduledChange

__all__ = ["Recovery", "recoveries", "time_above"]

WINDOW = 1.0  # s
WITHIN = 0.9  # share of the deliveries of a window that must be within the bound
_STEP = 0.01


@dataclass(frozen=True)
class Recovery:
    """A change, and the seconds until its topics were within the bound again; at least so many if it never was."""

    change: ScheduledChange
    seconds: float
    recovered: bool


def recoveries(scenario: Scenario, ledger: DeliveryLedger) -> list[Recovery]:
    """One for each change. The topics of a change are watched until the next change of one of them, or the end.

    A change that is followed by another (or the end) before a window has passed says nothing and is left out.
    """
    late = ledger.late(scenario.bound_ms)
    number = {topic: n for n, topic in enumerate(scenario.topics)}
    found = []
    for n, change in enumerate(scenario.changes):
        later = (other.at for other in scenario.changes[n + 1 :] if set(other.topics) & set(change.topics))
        until = min(next(later, scenario.seconds), scenario.seconds)
        if until - change.at < WINDOW:
            continue
        rows = np.isin(ledger.topic, [number[topic] for topic in change.topics])
        seconds, recovered = time_above(ledger.published[rows], late[rows], change.at, until)
        found.append(Recovery(change, seconds, recovered))
    return found


def time_above(
    published: NDArray[np.float64], late: NDArray[np.bool_], change: float, until: float
) -> tuple[float, bool]:
    """Seconds from a change to the first moment from which on, for a window, nearly all deliveries are in time.

    `published` ascends. A window without any delivery proves nothing. Returns also whether there was such a moment.
    """
    starts = change + _STEP * np.arange(int((until - WINDOW - change) / _STEP + 1e-6) + 1)
    first, last = np.searchsorted(published, starts), np.searchsorted(published, starts + WINDOW)
    lates = np.concatenate(([0], np.cumsum(late)))
    good = (last > first) & (lates[last] - lates[first] <= (1 - WITHIN) * (last - first) + 1e-9)
    if not good.any():
        return until - change, False
    return float(starts[np.argmax(good)] - change), True
