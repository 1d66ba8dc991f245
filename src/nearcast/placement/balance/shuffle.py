"""Stage 3, shuffle: assign all subscribers anew (Section 5.3)."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.balance.model import Balance, BalanceProblem, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["gsh"]

_REPORT_EVERY = 4096


def gsh(problem: BalanceProblem, current: NDArray[np.int64], advance: Callable[[float], None] | None = None) -> Balance:
    """Greedy shuffle: heaviest subscriber first, each to the broker with the least load F_j (Eq. 5)."""
    assignment = np.empty(problem.subscribers, dtype=np.int64)
    indptr, indices = problem.subscriptions.indptr, problem.subscriptions.indices
    outgoing = problem.outgoing.tolist()
    missing = [problem.rates.copy() for _ in range(problem.brokers)]  # λ_k where z_jk = 0
    lightest = [(0.0, broker) for broker in range(problem.brokers)]  # a heap, so in order already
    for done, subscriber in enumerate(np.argsort(-problem.outgoing, kind="stable").tolist()):
        load, broker = lightest[0]
        subscriptions = indices[indptr[subscriber] : indptr[subscriber + 1]]
        to_fetch = missing[broker]
        load += outgoing[subscriber] + float(np.add.reduce(to_fetch[subscriptions]))
        to_fetch[subscriptions] = 0.0
        heapq.heapreplace(lightest, (load, broker))
        assignment[subscriber] = broker
        if advance is not None and done % _REPORT_EVERY == 0:
            advance(done / problem.subscribers)
    return report(problem, current, assignment)
