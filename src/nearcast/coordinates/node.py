"""One node's network coordinate, updated with every round trip it measures.

The spring model with height of Dabek et al. ("Vivaldi", 2004), with the refinements that Serf, the agent used
by ePulsar, took from later work: median filter per peer and gravity (Ledlie et al., "Network Coordinates in
the Wild", 2007) and the adjustment term (Lee et al., "On Suitability of Euclidean Embedding", 2010).

Three things differ from Serf's code; docs/placement.md has the figures. A push is shared between position
and height by their parts of the whole length, as Vivaldi has it; Serf divides by the distance alone, and near
neighbours bounce. The spring pulls on the length without the adjustment: with it, positions grow and
adjustments fall without end, each making up for the other. Gravity works on milliseconds.

All lengths are milliseconds of round trip. Nothing here needs NumPy: devices run it.
"""

from __future__ import annotations

import math
import random
from collections import deque

import msgspec

from nearcast.domain.ranges import Coordinates, Figure, Milliseconds
from nearcast.errors import InputError

__all__ = ["Coordinate", "Node", "VivaldiSettings", "round_trip_ms"]


class VivaldiSettings(msgspec.Struct, frozen=True):
    """Serf's values but for gravity, in milliseconds. All nodes must agree on `dimensions`."""

    dimensions: int = 8
    error_max: float = 1.5  # of a node that knows nothing yet, and the upper limit
    error_gain: float = 0.25  # c_e of Vivaldi: how much one sample changes the confidence
    step_gain: float = 0.25  # c_c of Vivaldi: how much one sample moves the coordinate
    adjustment_window: int = 20  # samples; 0 turns the adjustment off
    filter_window: int = 3  # samples per peer whose median is used
    height_min_ms: float = 0.01
    gravity_ms: float = 256.0  # ρ: the pull is (distance from origin / ρ)² ms per update
    rtt_max_ms: float = 10_000.0
    zero_ms: float = 1e-3  # below this two positions are on top of each other


class Coordinate(msgspec.Struct, frozen=True):
    """Where a node is: a position in the core of the network and a height, its access link."""

    position: Coordinates
    height: Milliseconds
    adjustment: Figure = 0.0
    error: Figure = 1.5

    def behind(self, access_ms: float) -> Coordinate:
        """The coordinate of a mobile device `access_ms` away from this gateway: only the height differs."""
        return msgspec.structs.replace(self, height=self.height + access_ms)


def round_trip_ms(a: Coordinate, b: Coordinate) -> float:
    """The estimated round trip: d(nc₁, nc₂), each node's height counted once."""
    raw = math.dist(a.position, b.position) + a.height + b.height
    adjusted = raw + a.adjustment + b.adjustment
    return adjusted if adjusted > 0 else raw


class Node:
    """The live coordinate of this node. `seed` decides only where the node starts."""

    def __init__(self, settings: VivaldiSettings | None = None, seed: int | None = None) -> None:
        self.settings = settings = settings or VivaldiSettings()
        # Serf starts everyone at the origin and pushes coinciding nodes apart at random. Starting at a random
        # point a hair from the origin does the same and leaves the update itself free of chance.
        generator = random.Random(seed)
        reach = settings.zero_ms / (4 * math.sqrt(settings.dimensions))
        self._start = tuple(generator.uniform(-reach, reach) for _ in range(settings.dimensions))
        self._recent: dict[str, deque[float]] = {}
        self.resets = 0
        self._begin()

    def _begin(self) -> None:
        settings = self.settings
        self.coordinate = Coordinate(self._start, settings.height_min_ms, 0.0, settings.error_max)
        self._residuals = deque([0.0] * settings.adjustment_window, maxlen=settings.adjustment_window)

    def update(self, peer: str, other: Coordinate, rtt_ms: float) -> Coordinate:
        """Take in one measured round trip to a peer whose coordinate came with the answer."""
        settings, me = self.settings, self.coordinate
        self._refuse_nonsense(peer, other, rtt_ms)
        rtt = self._filtered(peer, rtt_ms)

        # Vivaldi: a spring between the two, stiffer the less certain this node is than its peer.
        estimate = math.dist(me.position, other.position) + me.height + other.height
        wrongness = abs(estimate - rtt) / max(rtt, settings.zero_ms)
        weight = me.error / max(me.error + other.error, 1e-6)
        gain = settings.error_gain * weight
        error = min(gain * wrongness + (1 - gain) * me.error, settings.error_max)
        force = settings.step_gain * weight * (rtt - estimate)
        position, height = self._pushed(me.position, me.height, other.position, other.height, force)

        # Adjustment: half the mean residual of the last samples, which no point in space could explain.
        adjustment = 0.0
        if settings.adjustment_window:
            self._residuals.append(rtt - (math.dist(position, other.position) + height + other.height))
            adjustment = sum(self._residuals) / (2 * settings.adjustment_window)

        # Gravity: distances of pairs do not fix the common position of all nodes, which would drift.
        origin, low = (0.0,) * settings.dimensions, settings.height_min_ms
        away = math.dist(position, origin) + height + low
        position, height = self._pushed(position, height, origin, low, -((away / settings.gravity_ms) ** 2))

        self.coordinate = Coordinate(position, height, adjustment, error)
        if not math.isfinite(sum(position) + height + adjustment + error):
            self.resets += 1
            self._begin()
        return self.coordinate

    def moved(self) -> None:
        """Say that this node has another place in the network now, so that old samples mislead.

        Without this the median filter keeps the old round trips until every peer was measured twice.
        """
        self._recent.clear()
        self._residuals.extend([0.0] * self.settings.adjustment_window)
        me = self.coordinate
        self.coordinate = Coordinate(me.position, me.height, 0.0, self.settings.error_max)

    def forget(self, peer: str) -> None:
        """Drop what is kept about a peer that is gone."""
        self._recent.pop(peer, None)

    def _filtered(self, peer: str, rtt_ms: float) -> float:
        samples = self._recent.get(peer)
        if samples is None:
            samples = self._recent[peer] = deque(maxlen=self.settings.filter_window)
        samples.append(rtt_ms)
        return sorted(samples)[len(samples) // 2]

    def _pushed(
        self, position: tuple[float, ...], height: float, source: tuple[float, ...], source_height: float, force: float
    ) -> tuple[tuple[float, ...], float]:
        """Position and height after a push of `force` ms away from a source."""
        apart = math.dist(position, source)
        # The push is shared between position and height by their parts of the whole length.
        scale = force / (apart + height + source_height)
        height = max(height + (height + source_height) * scale, self.settings.height_min_ms)
        if apart == 0:
            return (position[0] + force, *position[1:]), height
        if apart <= self.settings.zero_ms:  # on top of each other: the share of the position would be nothing
            scale = force / apart
        return tuple([p + (p - s) * scale for p, s in zip(position, source, strict=True)]), height

    def _refuse_nonsense(self, peer: str, other: Coordinate, rtt_ms: float) -> None:
        settings = self.settings
        if len(other.position) != settings.dimensions:
            raise InputError(
                f"coordinate of {peer} has {len(other.position)} dimensions; {settings.dimensions} are needed"
            )
        if not math.isfinite(sum(other.position) + other.height + other.adjustment + other.error):
            raise InputError(f"coordinate of {peer} is not finite: {other}")
        if other.height < 0 or other.error < 0:
            raise InputError(f"coordinate of {peer} has a negative height or error: {other}")
        if not 0 <= rtt_ms <= settings.rtt_max_ms:
            raise InputError(f"round trip to {peer} is {rtt_ms} ms; 0 to {settings.rtt_max_ms:g} is allowed")
