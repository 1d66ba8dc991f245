"""Many nodes at once: the live update of `node.py` over columns, and a fit to measured round trips.

A node measures along *links*; a link is a pair (source, destination) and has its own median filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from nearcast.coordinates.node import Coordinate, VivaldiSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Fit", "Simulation", "fit", "relative_errors"]

# A look at the error of every link costs as much as many rounds.
ROUNDS_BETWEEN_LOOKS = 200
_EXACT = 1e-6  # a median relative error at which there is nothing left to fit
MAX_HALVINGS = 4


class Simulation:
    """The coordinates of all nodes as columns. `step` does for many nodes what `Node.update` does for one."""

    def __init__(
        self, nodes: int, source: Ints, destination: Ints, seed: int = 0, settings: VivaldiSettings | None = None
    ) -> None:
        self.settings = settings = settings or VivaldiSettings()
        self.source, self.destination = source, destination
        reach = settings.zero_ms / (4 * np.sqrt(settings.dimensions))
        self.start = np.random.default_rng(seed).uniform(-reach, reach, (nodes, settings.dimensions))
        self.position = self.start.copy()
        self.height = np.full(nodes, settings.height_min_ms)
        self.adjustment = np.zeros(nodes)
        self.error = np.full(nodes, settings.error_max)
        self.resets = np.zeros(nodes, dtype=np.int64)
        self._residuals = np.zeros((nodes, settings.adjustment_window))
        self._updates = np.zeros(nodes, dtype=np.int64)
        # Samples not taken yet are +inf: they sort behind the others, so the median's place is known.
        self._recent = np.full((len(source), settings.filter_window), np.inf)
        self._samples = np.zeros(len(source), dtype=np.int64)

    def coordinate(self, node: int) -> Coordinate:
        """One node's coordinate as the live code has it."""
        position = tuple(self.position[node].tolist())
        return Coordinate(position, float(self.height[node]), float(self.adjustment[node]), float(self.error[node]))

    def step(self, links: Ints, rtt_ms: Floats) -> None:
        """One sample on each of these links, at most one per source, all seeing the state before the step."""
        settings, me, peer = self.settings, self.source[links], self.destination[links]
        rtt = self._filtered(links, rtt_ms)
        position, height = self.position[me], self.height[me]
        other, other_height = self.position[peer], self.height[peer]

        estimate = self._spring_length(me, peer)
        wrongness = np.abs(estimate - rtt) / np.maximum(rtt, settings.zero_ms)
        weight = self.error[me] / np.maximum(self.error[me] + self.error[peer], 1e-6)
        gain = settings.error_gain * weight
        error = np.minimum(gain * wrongness + (1 - gain) * self.error[me], settings.error_max)
        force = settings.step_gain * weight * (rtt - estimate)
        position, height = self._pushed(position, height, other, other_height, force)

        adjustment = np.zeros(len(me))
        if window := settings.adjustment_window:
            residual = rtt - (np.linalg.norm(position - other, axis=1) + height + other_height)
            self._residuals[me, self._updates[me] % window] = residual
            adjustment = self._residuals[me].sum(axis=1) / (2 * window)

        origin, low = np.zeros_like(position), np.full(len(me), settings.height_min_ms)
        away = np.linalg.norm(position, axis=1) + height + low
        position, height = self._pushed(position, height, origin, low, -((away / settings.gravity_ms) ** 2))

        self._updates[me] += 1
        self.position[me], self.height[me] = position, height
        self.adjustment[me], self.error[me] = adjustment, error
        valid = np.isfinite(position.sum(axis=1) + height + adjustment + error)
        if not valid.all():
            self._reset(me[~valid])

    def _spring_length(self, me: Ints, peer: Ints) -> Floats:
        apart = np.linalg.norm(self.position[me] - self.position[peer], axis=1)
        return np.asarray(apart + self.height[me] + self.height[peer])

    def moved(self, node: int) -> None:
        """As `Node.moved`: this node is in another place now."""
        self._recent[self.source == node] = np.inf
        self._samples[self.source == node] = 0
        self._residuals[node] = 0
        self.adjustment[node], self.error[node] = 0, self.settings.error_max

    def _filtered(self, links: Ints, rtt_ms: Floats) -> Floats:
        window = self.settings.filter_window
        self._recent[links, self._samples[links] % window] = rtt_ms
        self._samples[links] += 1
        middle = np.minimum(self._samples[links], window) // 2
        return np.asarray(np.sort(self._recent[links], axis=1)[np.arange(len(links)), middle])

    def _pushed(
        self, position: Floats, height: Floats, source: Floats, source_height: Floats, force: Floats
    ) -> tuple[Floats, Floats]:
        away = position - source
        apart = np.linalg.norm(away, axis=1)
        scale = force / (apart + height + source_height)
        height = np.maximum(height + (height + source_height) * scale, self.settings.height_min_ms)
        close = apart <= self.settings.zero_ms
        away[apart == 0, 0] = 1.0
        scale[close] = force[close] / np.where(apart[close] > 0, apart[close], 1.0)
        return position + away * scale[:, None], height

    def _reset(self, nodes: Ints) -> None:
        self.resets[nodes] += 1
        self.position[nodes], self.height[nodes] = self.start[nodes], self.settings.height_min_ms
        self.adjustment[nodes], self.error[nodes] = 0, self.settings.error_max
        self._residuals[nodes] = 0


@dataclass(frozen=True)
class Fit:
    """Coordinates fitted to round trips, and how well they tell them."""

    position: Floats
    height: Floats
    rounds: int
    median_relative_error: float
    p90_relative_error: float


def fit(
    nodes: int,
    source: Ints,
    destination: Ints,
    rtt_ms: Floats,
    *,
    seed: int = 0,
    max_rounds: int = 10_000,
    advance: Callable[[float], object] = lambda fraction: None,
) -> Fit:
    """Coordinates for measured round trips, all above 0; each round every node samples one of its links.

    Live nodes keep their step, because the network changes under them. Here it does not: the step is halved
    whenever the median error stops falling, and the last halving that does not help ends the fit. The
    adjustment term is left out: it follows the noise of its last samples, and heights do its work.
    """
    source, destination, rtt_ms = _both_ways(nodes, source, destination, rtt_ms)
    first = np.searchsorted(source, np.arange(nodes + 1))
    degree = np.diff(first)
    measuring = np.flatnonzero(degree)
    simulation = Simulation(nodes, source, destination, seed, VivaldiSettings(adjustment_window=0, gravity_ms=np.inf))
    generator = np.random.default_rng([seed, 1])
    best, halvings, rounds = np.inf, 0, 0
    while rounds < max_rounds and halvings < MAX_HALVINGS:
        for _ in range(ROUNDS_BETWEEN_LOOKS):
            links = first[measuring] + (generator.random(len(measuring)) * degree[measuring]).astype(np.int64)
            simulation.step(links, rtt_ms[links])
        rounds += ROUNDS_BETWEEN_LOOKS
        errors = relative_errors(simulation.position, simulation.height, source, destination, rtt_ms)
        median = float(np.median(errors))
        if median > 0.99 * best:
            halvings += 1
            step_gain = simulation.settings.step_gain / 2
            simulation.settings = msgspec.structs.replace(simulation.settings, step_gain=step_gain)
        best = min(best, median)
        if median < _EXACT:
            break
        advance(max(halvings / MAX_HALVINGS, rounds / max_rounds))
    return Fit(simulation.position, simulation.height, rounds, median, float(np.percentile(errors, 90)))


def relative_errors(position: Floats, height: Floats, source: Ints, destination: Ints, rtt_ms: Floats) -> Floats:
    """|estimate - measured| / measured for every link."""
    estimate = np.linalg.norm(position[source] - position[destination], axis=1)
    estimate += height[source] + height[destination]
    return np.asarray(np.abs(estimate - rtt_ms) / rtt_ms)


def _both_ways(nodes: int, source: Ints, destination: Ints, rtt_ms: Floats) -> tuple[Ints, Ints, Floats]:
    """The links sorted by source, with the way back added where only one direction was measured."""
    one_way = ~np.isin(destination * nodes + source, source * nodes + destination)
    both = np.concatenate([source, destination[one_way]])
    back = np.concatenate([destination, source[one_way]])
    order = np.lexsort((back, both))
    return both[order], back[order], np.concatenate([rtt_ms, rtt_ms[one_way]])[order]
