"""Network coordinates of nodes whose round trips are all known, by multidimensional scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats

__all__ = ["DIMENSIONS", "network_coordinates"]

DIMENSIONS = 8


def network_coordinates(delay_ms: Floats) -> Floats:
    """Points in eight dimensions whose distances are close to the delays (metric scaling by majorisation).

    This is what network coordinates converge to when every node has measured every other one.
    """
    from sklearn.manifold import smacof

    nodes = len(delay_ms)
    # Start from classical scaling: exact when the delays are distances in eight dimensions.
    centring = np.eye(nodes) - 1 / nodes
    values, vectors = np.linalg.eigh(-0.5 * centring @ delay_ms**2 @ centring)
    largest = np.argsort(values)[::-1][:DIMENSIONS]
    start = np.zeros((nodes, DIMENSIONS))
    start[:, : len(largest)] = vectors[:, largest] * np.sqrt(np.clip(values[largest], 0, None))
    if nodes < 3:
        return start
    points, _ = smacof(delay_ms, n_components=DIMENSIONS, init=start, n_init=1, max_iter=300, eps=1e-6)
    return np.asarray(points)
