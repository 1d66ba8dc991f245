"""Distances on the globe."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.coordinates.geography import great_circle_km

PARIS, LONDON, SYDNEY, ROME = (48.8566, 2.3522), (51.5074, -0.1278), (-33.8688, 151.2093), (41.9028, 12.4964)


def test_distances_of_cities() -> None:
    assert great_circle_km(*PARIS, *LONDON) == pytest.approx(343.6, abs=0.5)
    assert great_circle_km(*LONDON, *SYDNEY) == pytest.approx(16_994, rel=0.001)
    assert great_circle_km(*PARIS, *ROME) == pytest.approx(1105, abs=2)


def test_across_the_date_line_and_to_the_antipode() -> None:
    assert great_circle_km(0, 179.5, 0, -179.5) == pytest.approx(111.2, abs=0.1)
    assert great_circle_km(0, 0, 0, 180) == pytest.approx(20_015, rel=0.001)
    assert great_circle_km(0, 0, 0, 90) == pytest.approx(10_007.5, rel=1e-4)


def test_arguments_are_broadcast() -> None:
    lat, lon = np.array([PARIS, LONDON, ROME]).T
    distance = great_circle_km(lat[:, None], lon[:, None], lat, lon)
    assert distance.shape == (3, 3)
    np.testing.assert_allclose(distance, distance.T)
    assert np.diagonal(distance).max() < 1e-6
