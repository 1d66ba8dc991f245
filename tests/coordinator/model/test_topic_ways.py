"""Ways put together from what homes report, beside a literal computation over every client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearcast.coordinator.model.topic_ways import site_round_trips, topic_ways
from nearcast.coordinator.monitor import ReportColumns
from nearcast.protocol.reports import ClientReport, ClientTopic, SiteReport
from nearcast.site.agent.aggregation import aggregate

SITES = ("a", "b", "c", "d")


def test_unmeasured_pairs_are_estimated_or_go_through_a_third_site() -> None:
    measured = {"a": {"b": 30.0}, "b": {"a": 28.0, "c": 10.0}, "x": {"a": 1.0}}
    found = site_round_trips(SITES[:3], measured, None)
    assert found.tolist() == [[0.0, 28.0, 38.0], [28.0, 0.0, 10.0], [38.0, 10.0, 0.0]]
    estimated = np.full((3, 3), 20.0)
    assert site_round_trips(SITES[:3], measured, estimated)[0, 2] == 20.0
    alone = site_round_trips(SITES[:2], {}, None)
    assert np.isinf(alone[0, 1])
    assert alone[0, 0] == 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_legs_and_ways_are_those_of_the_worst_client(seed: int) -> None:
    rng = np.random.default_rng(seed)
    place = {site: rng.uniform(0, 60, 2) for site in SITES}
    between = np.array([[np.linalg.norm(place[a] - place[b]) for b in SITES] for a in SITES])
    round_trips = site_round_trips(
        SITES, {a: dict(zip(SITES, row, strict=True)) for a, row in zip(SITES, between, strict=True)}, None
    )
    clients, columns = [], {}
    for home, row in zip(SITES[:2], between, strict=False):
        reports = []
        for n in range(int(rng.integers(1, 4))):
            at, access = rng.uniform(0, 60, 2), float(rng.uniform(1, 10))
            measured = {site: float(np.linalg.norm(at - place[site]) + access) for site in SITES}
            clients.append((home, measured))
            topics = [ClientTopic("gps", True, False, 5, 500)]
            reports.append(ClientReport(f"{home}{n}", 5.0, None, topics, measured))
        topics_here = aggregate(reports, ["gps"], {}, home, dict(zip(SITES, row, strict=True)))
        columns[home] = ReportColumns(SiteReport(home, 1, topics=topics_here))
    managing = np.zeros((1, 4), dtype=bool)
    managing[0, 2] = True
    legs, ways = topic_ways(columns, 0, {"gps": 0}, {site: n for n, site in enumerate(SITES)}, managing, round_trips)
    for n, site in enumerate(SITES):
        assert ways[0, n] == pytest.approx(max(measured[site] for _, measured in clients) / 2)
    through_home = [(measured[home] + between[SITES.index(home), 2]) / 2 for home, measured in clients]
    assert legs[0] == pytest.approx(max(through_home))
    legs, ways = topic_ways(columns, 1, {"gps": 0}, {site: n for n, site in enumerate(SITES)}, managing, round_trips)
    assert np.isnan(legs).all()
    assert np.isnan(ways).all()
