"""Stage 2, dynamic migration: move subscribers, one at a time, off the most loaded broker (Algorithm 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.balance.model import Balance, BalanceProblem, cov, report
from nearcast.placement.balance.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["ldm", "sdm"]


def ldm(problem: BalanceProblem, current: NDArray[np.int64], *, alpha: float = 0.0, beta: float = 0.0) -> Balance:
    """Load-based migration: the heaviest subscriber that may, to the least loaded broker.

    Goes on while cov > α and μ > β, and ends when no valid move is left.
    """
    return _migrate(problem, current, alpha, beta, lambda load: np.array([load.argmin()]))


def sdm(problem: BalanceProblem, current: NDArray[np.int64], *, alpha: float = 0.0, beta: float = 0.0) -> Balance:
    """Similarity-based migration: to the broker below the mean load that shares most with the subscriber."""

    def below_mean(load: NDArray[np.float64]) -> NDArray[np.int64]:
        lightest_first = np.argsort(load, kind="stable")
        return np.asarray(lightest_first[load[lightest_first] < load.mean()])

    return _migrate(problem, current, alpha, beta, below_mean)


def _migrate(
    problem: BalanceProblem,
    current: NDArray[np.int64],
    alpha: float,
    beta: float,
    destinations: Callable[[NDArray[np.float64]], NDArray[np.int64]],
) -> Balance:
    state = State(problem, current)
    while cov(state.load) > alpha and state.load.mean() > beta:
        move = _first_valid(state, destinations(state.load))
        if move is None:
            break
        state.move(*move)
    return report(problem, current, state.assignment())


def _first_valid(state: State, destinations: NDArray[np.int64]) -> tuple[int, int] | None:
    """The heaviest subscriber of the most loaded broker whose move is valid, and where it goes (lines 7-17).

    It goes where it shares most, which is where it adds least; of equals, to the first of `destinations`.
    """
    source = int(state.load.argmax())
    if not len(destinations) or source in destinations:
        return None
    # Whoever is sent more than the widest gap makes any destination heavier than the source was.
    low = state.first_not_above(float(state.load[source] - state.load[destinations].min()) + state.tiny)
    for ranks in state.ranks_at(source, low):
        incoming = state.incoming(ranks, destinations)
        best = incoming.argmin(axis=0)
        to = destinations[best]
        after = state.load[to] + state.outgoing[ranks] + incoming.min(axis=0)
        for i in np.flatnonzero(after <= state.load[source] + state.tiny):
            if _progresses(state, int(ranks[i]), int(to[i]), float(after[i])):
                return int(ranks[i]), int(to[i])
    return None


def _progresses(state: State, rank: int, to: int, after: float) -> bool:
    """Valid allows the destination to become as heavy as the source was; then the other must get lighter.

    Without this the two could pass a subscriber back and forth for ever.
    """
    source = float(state.load[state.broker[rank]])
    return after < source - state.tiny or source - state.relief(rank) < state.load[to] - state.tiny
