"""Simulated annealing over homes: leaves the local optima in which single moves and swaps end.

Overfull sites make the delay rough: giving up one site to keep the others within their limits takes many moves that
each cost something. A block of clients is drawn at a time and the changes of all their moves are computed together.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.homes.incremental_delay import IncrementalDelay

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.homes.problem import HomesProblem
    from nearcast.placement.progress import Advance

__all__ = ["anneal"]

# Clients drawn together; larger blocks cost less per client, smaller ones see each other's moves.
BLOCK = 16
# From the first to the last temperature.
COOLING = 300.0


def anneal(
    problem: HomesProblem, start: Ints, sweeps: int, rng: np.random.Generator, seconds: float, advance: Advance
) -> Ints:
    """The best homes seen in `sweeps` passes over the clients, or in `seconds`; then it ends where it is.

    A client's next home is drawn with the Boltzmann weights of all its moves; the temperature falls by one factor per
    block from the typical cost of a second-best home.
    """
    homes = IncrementalDelay(problem, start)
    busy = np.flatnonzero(np.diff(problem.members.tocsc().indptr))
    if not len(busy) or problem.sites == 1:
        return homes.home
    best, least = homes.home.copy(), homes.total_ms()
    blocks = sweeps * -(-len(busy) // BLOCK)
    first = _first_temperature(homes, busy)
    deadline = time.perf_counter() + seconds
    total = least
    for number in range(blocks):
        temperature = first * COOLING ** (-number / blocks)
        total = _draw_block(homes, rng.choice(busy, min(BLOCK, len(busy)), replace=False), temperature, total, rng)
        if total < least * (1 - 1e-12):
            best, least = homes.home.copy(), total
        if number % 64 == 63:
            homes.recompute()
            total = homes.total_ms()
            advance(number / blocks)
            if time.perf_counter() > deadline:
                break
    return best


def _first_temperature(homes: IncrementalDelay, busy: Ints) -> float:
    change, _ = homes.move_changes(busy[:: max(len(busy) // 512, 1)])
    second = np.sort(change, axis=1)[:, 1]
    positive = second[second > 0]
    return float(np.median(positive)) if len(positive) else max(homes.total_ms(), 1e-300) / len(busy)


def _draw_block(
    homes: IncrementalDelay, clients: Ints, temperature: float, total: float, rng: np.random.Generator
) -> float:
    """Draw a home for each client of a block; give the total afterwards."""
    change, _ = homes.move_changes(clients)
    target = _boltzmann(change, temperature, rng)
    for row in np.flatnonzero(target != homes.home[clients]).tolist():
        client, old = int(clients[row]), int(homes.home[clients[row]])
        homes.move(client, int(target[row]))
        after = homes.total_ms()
        # The changes were computed before the moves of the block: what they were wrong by is judged again.
        surprise = after - total - change[row, target[row]]
        if surprise <= 1e-9 * abs(total) or rng.random() < np.exp(-surprise / temperature):
            total = after
        else:
            homes.move(client, old)
    return total


def _boltzmann(change: Floats, temperature: float, rng: np.random.Generator) -> Ints:
    """A column of each row, with probability proportional to exp(-change / temperature)."""
    weight = np.exp(-(change - change.min(axis=1, keepdims=True)) / temperature)
    upto = np.cumsum(weight, axis=1)
    drawn = (rng.random(len(change)) * upto[:, -1])[:, None] < upto
    return np.asarray(drawn.argmax(axis=1), dtype=np.int64)
