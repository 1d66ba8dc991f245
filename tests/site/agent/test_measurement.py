"""Figures of brokers and workers: differences of two measurements, per second."""

from __future__ import annotations

import pytest

from nearcast.domain.latency_histogram import bucket, empty
from nearcast.protocol.worker import TopicWork, WorkerStats
from nearcast.site.agent.measurement import broker_figures, network_share, worker_figures


def work(processed: int, busy_s: float, *latencies_ms: float) -> TopicWork:
    latency = empty()
    for value in latencies_ms:
        latency[bucket(value)] += 1
    return TopicWork(processed=processed, busy_s=busy_s, waiting=3, latency=latency)


def test_a_worker_counts_what_it_did_since_the_last_measurement() -> None:
    before = {("worker-0", "gps"): work(100, 1.0, 500.0)}
    stats = WorkerStats("worker-0", topics={"gps": work(300, 2.0, 500.0, *[8.0] * 10), "new": work(50, 9.0)})
    figures = worker_figures(stats, before, 4.0)
    assert figures.busy == 0.25
    (topic,) = figures.topics  # a topic without an earlier measurement has no figures yet
    assert (topic.topic, topic.rate, topic.processing_ms, topic.waiting) == ("gps", 50.0, 5.0, 3)
    assert topic.p90_ms == pytest.approx(8.0, rel=0.2)  # without the 500 ms that were reported before


def test_a_restarted_worker_has_no_figures_for_one_period() -> None:
    before = {("worker-0", "gps"): work(100, 1.0)}
    assert worker_figures(WorkerStats("worker-0", topics={"gps": work(10, 0.1)}), before, 1.0).topics == []


def test_a_broker_gives_rates_and_shares() -> None:
    before = {"in_msgs": 0, "out_msgs": 100, "in_bytes": 0, "out_bytes": 0}
    varz = {"in_msgs": 10, "out_msgs": 300, "in_bytes": 1e6, "out_bytes": 25e6, "connections": 7, "cpu": 150.0}
    figures = broker_figures(varz | {"cores": 2, "mem": 0}, before, 2.0, 3, 200.0)
    assert (figures.connections, figures.mqtt_connections) == (7, 3)
    assert (figures.messages_in, figures.messages_out, figures.bytes_in, figures.bytes_out) == (5, 100, 5e5, 12.5e6)
    assert (figures.cpu, figures.memory, figures.network) == (0.75, 0.0, 0.5)


def test_a_link_of_unknown_bandwidth_has_no_share() -> None:
    assert network_share(1e6, 11.5e6, 100) == pytest.approx(0.92)
    assert network_share(1e9, 1e9, None) == 0.0
