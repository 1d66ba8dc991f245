"""What pages make of the state: rates of the data cluster, dots on the map."""

from __future__ import annotations

from typing import Any, cast

from nearcast.protocol.data_cluster import DataClusterState, ProducerState
from nearcast.web.client_positions import PlacedClient
from nearcast.web.live import Live
from nearcast.web.pages.catalog import producer_rows
from nearcast.web.pages.map_page import map_options
from nearcast.web.snapshot import Snapshot


def producer(rows: int, results: int) -> DataClusterState:
    return DataClusterState([ProducerState("reports", rows, 0, results, 1, 0, 0.1, "")], [], {})


def test_rates_are_between_two_states() -> None:
    live = Live(cast("Any", None))
    assert producer_rows(live) == []
    live.cluster = producer(100, 10)
    assert producer_rows(live)[0]["rows_per_s"] == 0
    live.cluster_before, live.cluster, live.cluster_seconds = live.cluster, producer(400, 10), 6.0
    row = producer_rows(live)[0]
    assert (row["rows_per_s"], row["results_per_s"]) == (50, 0)
    live.cluster_before, live.cluster = live.cluster, producer(3, 0)  # a new driver counts from zero
    assert producer_rows(live)[0]["rows_per_s"] == 0


SITE = {
    "site": "tokyo", "position": (35.7, 139.7), "round_trips_ms": {}, "state": "up", "watermark": 0.85,
    "cpu": 0.1, "memory": 0.1, "network": 0.1, "busiest_worker": 0.1,
}  # fmt: skip


def test_clients_are_dots_around_their_home_and_do_not_become_too_many() -> None:
    for clients, dots in ((0, 0), (7, 7), (10_000, 200)):
        options = map_options(Snapshot(sites=[{**SITE, "clients": clients}]))
        drawn = options["series"][1]["data"]
        assert len(drawn) == dots
        assert all(dot["value"] == [139.7, 35.7] for dot in drawn)
        assert len({tuple(dot["symbolOffset"]) for dot in drawn}) == dots


def test_clients_that_tell_their_position_are_there_and_not_around_their_home() -> None:
    placed = [PlacedClient(f"car{n}", "tokyo", (35.0 + n, 135.0)) for n in range(3)]
    options = map_options(Snapshot(sites=[{**SITE, "clients": 7}]), placed)
    around, there = options["series"][1]["data"], options["series"][2]["data"]
    assert len(around) == 4
    assert [dot["value"] for dot in there] == [[135.0, 35.0], [135.0, 36.0], [135.0, 37.0]]
    assert there[0]["name"] == "car0, home tokyo"
    without_all = map_options(Snapshot(sites=[{**SITE, "clients": 2}]), placed)  # the registry is a moment behind
    assert without_all["series"][1]["data"] == []
