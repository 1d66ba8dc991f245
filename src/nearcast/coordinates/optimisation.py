"""Coordinates by direct optimisation: all round trips at once, where they are at hand (offline).

Vivaldi moves one node at a time by one round trip, because live nodes know no more. With the whole matrix a
quasi-Newton method finds a better embedding, starting from Vivaldi's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array

from nearcast.coordinates.simulation import Fit, relative_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["optimise"]

_ROBUST = 0.05  # relative errors above this count linearly: detours that no embedding can tell do not bend the rest
_ITERATIONS = 200
_LEAST_DISTANCE = 1e-9


def optimise(
    start: Fit,
    source: Ints,
    destination: Ints,
    rtt_ms: Floats,
    *,
    advance: Callable[[float], object] = lambda fraction: None,
) -> Fit:
    """A better fit: the least sum of pseudo-Huber losses of all links' relative errors. Heights stay at least 0."""
    nodes, dimensions = start.position.shape
    every_link = source, destination, rtt_ms
    source, destination, rtt_ms = _once(nodes, *every_link)
    links = len(rtt_ms)
    ones = np.ones(links)
    # +1 for the source and -1 for the destination of each link; the sum of both for heights.
    ends = [csr_array((ones, (end, np.arange(links))), (nodes, links)) for end in (source, destination)]
    difference, both = ends[0] - ends[1], ends[0] + ends[1]
    scale = float(np.median(rtt_ms))  # so that all variables are about 1
    rtt = rtt_ms / scale
    iterations = 0

    def loss(variables: Floats) -> tuple[float, Floats]:
        position, height = variables[: nodes * dimensions].reshape(nodes, dimensions), variables[nodes * dimensions :]
        apart = position[source] - position[destination]
        distance = np.maximum(np.sqrt(np.einsum("ij,ij->i", apart, apart)), _LEAST_DISTANCE)
        error = (distance + height[source] + height[destination] - rtt) / rtt
        root = np.sqrt(1 + (error / _ROBUST) ** 2)
        slope = error / (root * rtt)
        by_position = difference @ (apart * (slope / distance)[:, None])
        gradient = np.concatenate([np.asarray(by_position).ravel(), np.asarray(both @ slope)])
        return float(_ROBUST**2 * (root - 1).sum()), gradient

    def count(_: Floats) -> None:
        nonlocal iterations
        iterations += 1
        advance(min(iterations / _ITERATIONS, 1.0))

    begin = np.concatenate([start.position.ravel(), start.height]) / scale
    free, at_least_zero = [(None, None)] * (nodes * dimensions), [(0.0, None)] * nodes
    found = minimize(
        loss, begin, jac=True, method="L-BFGS-B", bounds=free + at_least_zero, callback=count,
        options={"maxiter": _ITERATIONS, "maxcor": 20},
    )  # fmt: skip
    position = scale * found.x[: nodes * dimensions].reshape(nodes, dimensions)
    height = scale * found.x[nodes * dimensions :]
    errors = relative_errors(position, height, *every_link)
    return Fit(position, height, iterations, float(np.median(errors)), float(np.percentile(errors, 90)))


def _once(nodes: int, source: Ints, destination: Ints, rtt_ms: Floats) -> tuple[Ints, Ints, Floats]:
    """Each pair once, with the mean of what was measured both ways: half the work, the same answer."""
    pair = np.minimum(source, destination) * nodes + np.maximum(source, destination)
    pairs, number = np.unique(pair, return_inverse=True)
    mean = np.bincount(number, rtt_ms) / np.bincount(number)
    return pairs // nodes, pairs % nodes, mean
