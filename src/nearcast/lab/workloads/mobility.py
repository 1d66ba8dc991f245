"""Movement: random waypoints, and traces sampled at given times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nearcast.lab.workloads.formats import Positions
    from nearcast.placement.arrays import Floats

__all__ = ["random_waypoint", "sampled_traces"]


def random_waypoint(
    rng: np.random.Generator, movers: int, box: tuple[float, float, float, float], speed: float, times: Floats
) -> tuple[Floats, Floats]:
    """Positions (movers x times) in a box (low x, low y, high x, high y): straight to a random point, and on.

    Speed is in box units per unit of time, without pauses; movers start at a random point.
    """
    low, high = np.array(box[:2]), np.array(box[2:])
    x, y = np.empty((2, movers, len(times)))
    for mover in range(movers):
        points = rng.uniform(low, high, (2, 2))
        reached = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))))
        while reached[-1] < speed * times[-1]:
            points = np.concatenate((points, rng.uniform(low, high, (len(points), 2))))
            reached = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))))
        x[mover], y[mover] = (np.interp(speed * times, reached, points[:, axis]) for axis in (0, 1))
    return x, y


def sampled_traces(traces: Positions, movers: int, times: Floats) -> tuple[Floats, Floats]:
    """Longitude and latitude (movers x times) of the movers seen most often, around the traces' median time.

    Between two sightings a mover goes straight; before its first and after its last it stays there.
    """
    seen = np.unique(traces.who, return_inverse=True)[1]
    chosen = np.argsort(-np.bincount(seen), kind="stable")[:movers]
    start = np.quantile(traces.time_s, 0.5) - times[-1] / 2
    x, y = np.empty((2, len(chosen), len(times)))
    for row, mover in enumerate(chosen):
        mine = seen == mover
        moments = traces.time_s[mine] - start
        x[row] = np.interp(times, moments, traces.lon[mine])
        y[row] = np.interp(times, moments, traces.lat[mine])
    return x, y
