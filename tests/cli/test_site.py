"""What `site info` prints of a report."""

from __future__ import annotations

from typing import Any

from nearcast.cli.site import site_fields, topic_rows, worker_rows

ROW = {"site": "tokyo", "kind": "edge", "url": "nats://127.0.0.1:4222", "state": "up", "clients": 3}
REPORT: dict[str, Any] = {
    **ROW,
    "broker": {
        "connections": 9, "mqtt_connections": 2, "messages_in": 12.34567890123456, "messages_out": 40.0,
        "bytes_in": 2500.0, "bytes_out": 9000.0, "cpu": 0.0312345678901234, "memory": 0.2, "network": 0.0,
    },
    "store": True,
    "store_state": "up",
    "round_trips": {"osaka": 20.123456789012345, "cloud": 3.0},
    "topics": [{"topic": "gps.*", "producers": 2.0, "consumers": 1.0, "messages_out": 1.23456789, "messages_in": 0.0}],
    "workers": [{"worker": "worker-0", "busy": 0.0123456, "topics": [["gps.*", 12.3456, 0.123456, 4, 7.654321, 1, 0]]}],
}  # fmt: skip


def test_figures_have_units_and_no_more_digits_than_they_mean() -> None:
    fields = site_fields(REPORT)
    assert fields["site"] == "tokyo, edge, up"
    assert fields["connections"] == "9, 2 of MQTT devices"
    assert fields["messages in"] == "12.3/s, 2.5 kB/s"
    assert fields["cpu"] == "3.1% in use"
    assert fields["round trips"] == "cloud 3.0 ms, osaka 20.1 ms"
    assert topic_rows(REPORT) == [
        {"topic": "gps.*", "publishers": "2", "subscribers": "1", "published": "1.2/s", "received": "0.0/s"}
    ]
    (worker,) = worker_rows(REPORT)
    assert (worker["busy"], worker["rate"], worker["p90"], worker["dead letters"]) == ("1.2%", "12.3/s", "7.7 ms", "1")


def test_a_store_that_is_down_and_a_site_without_one_are_told_apart() -> None:
    assert site_fields(REPORT)["store"] == "up"
    assert site_fields({**REPORT, "store_state": "none"})["store"] == "none"
    down = site_fields({**REPORT, "store": False, "store_state": "down"})["store"]
    assert down == "down: it does not answer, or cannot write; the site's log says why"


def test_a_site_that_has_not_reported_says_so() -> None:
    assert site_fields(ROW)["report"] == "none yet"
