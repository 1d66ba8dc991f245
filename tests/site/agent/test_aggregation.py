"""A topic's clients as a constant number of figures, beside the planner's own aggregates."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from nearcast.coordinates import Coordinate
from nearcast.domain.latency_histogram import BUCKETS, bucket, percentile
from nearcast.nats.boundary import decode
from nearcast.placement.partitioning import PartitionClients, PartitionSites
from nearcast.placement.partitioning import aggregate as planned
from nearcast.protocol.reports import ClientReport, ClientTopic, SiteReport, SiteWay, channel_row
from nearcast.site.agent.aggregation import aggregate, site_ways
from nearcast.site.agent.measurement import fitting_report

SITE = Coordinate((5.0,) * 8, 2.0)


def reports(count: int, seed: int = 1) -> list[ClientReport]:
    rng = np.random.default_rng(seed)
    return [
        ClientReport(
            f"c{n}",
            2.0,
            Coordinate(tuple(rng.normal(0, 20, 8).tolist()), float(rng.uniform(0, 5))),
            [ClientTopic("gps", n % 2 == 0, n % 3 == 0, 10, 1000, 4, 400, {30: 2, 40: 1})],
        )
        for n in range(count)
    ]


def test_centroids_deviation_and_worst_case_are_those_of_the_planner() -> None:
    found = reports(20)
    (topic,) = aggregate(found, ["gps"], {"gps": SITE})
    clients = PartitionClients(
        np.zeros(20, dtype=np.int64),
        np.array([part.topics[0].publishes for part in found]),
        np.array([part.topics[0].subscribes for part in found]),
        np.array([part.coordinate.position for part in found if part.coordinate]),
        np.array([part.coordinate.height for part in found if part.coordinate]),
    )
    brokers = PartitionSites(np.array([SITE.position]), np.array([SITE.height]), np.array([1e9]))
    wanted = planned(clients, brokers, np.zeros(1, dtype=np.int64), np.array([1.0]), np.array([1.0]))
    assert topic.producer_centroid == pytest.approx(wanted.producer_centroid[0])
    assert topic.consumer_centroid == pytest.approx(wanted.consumer_centroid[0])
    assert topic.producer_deviation + topic.consumer_deviation == pytest.approx(wanted.deviation[0])
    assert topic.producer_leg + topic.consumer_leg == pytest.approx(wanted.latency[0])
    assert topic.messages_out == pytest.approx(20 * 10 / 2.0)


def test_size_does_not_depend_on_the_number_of_clients() -> None:
    sizes = {len(msgspec.msgpack.encode(aggregate(reports(n), ["gps"], {"gps": SITE})[0])) for n in (1, 10, 100, 1000)}
    assert len(sizes) == 1


def test_patterns_count_for_every_topic_they_match() -> None:
    reported = [ClientReport("c", 1.0, SITE, [ClientTopic("gps.*", False, True, 0, 0, 10), ClientTopic("gps.x", True)])]
    found = {topic.topic: topic for topic in aggregate(reported, ["gps.x", "gps.y", "air"], {})}
    assert set(found) == {"gps.x", "gps.y"}
    assert found["gps.x"].consumers == found["gps.y"].consumers == found["gps.x"].producers == 1
    assert found["gps.y"].producers == 0
    assert found["gps.x"].messages_in == 5.0


def test_a_histogram_gives_percentiles_within_a_bucket() -> None:
    rng = np.random.default_rng(3)
    values = rng.lognormal(2, 1, 5000)
    counts = np.bincount([bucket(value) for value in values], minlength=BUCKETS).tolist()
    for share in (0.5, 0.9, 0.99):
        exact = float(np.quantile(values, share))
        assert percentile(counts, share) == pytest.approx(exact, rel=0.03)
    assert percentile([0] * BUCKETS, 0.9) == 0.0


def test_a_channel_has_one_row_whatever_its_parameters_and_is_no_topic() -> None:
    reported = [
        ClientReport(f"c{n}", 1.0, SITE, [ClientTopic(channel_row("alerts"), False, True, messages_in=3) for _ in "ab"])
        for n in range(4)
    ]
    (row,) = aggregate(reported, [">"], {">": SITE})
    assert (row.topic, row.consumers, row.messages_in) == ("channel alerts", 8.0, 24.0)


def test_ways_are_one_way_the_worst_of_the_clients_and_through_the_home_where_one_did_not_measure() -> None:
    near = {"a": 20.0, "b": 50.0, "c": 90.0}
    far = {"a": 40.0, "b": 30.0}
    assert site_ways([near, far], "a", {"c": 30.0}) == [
        SiteWay("a", 20.0, 15.0),
        SiteWay("b", 25.0, 20.0),
        SiteWay("c", 45.0, 40.0),  # of the second client (40 + 30) / 2
    ]
    # A site that one of them cannot be told about at all says nothing of the topic.
    assert [way.site for way in site_ways([near, far], "a", {})] == ["a", "b"]
    assert site_ways([], "a", {}) == []


def test_a_report_has_the_same_size_whatever_the_clients_and_the_sites_they_measured() -> None:
    sizes = set()
    for clients in (1, 10, 500):
        reports = [
            ClientReport(
                f"c{n}",
                5.0,
                None,
                [ClientTopic("gps", True, True, 5, 500, 5, 500, {20: 3})],
                {f"s{site:02}": 10.0 + n + site for site in range(12)},
            )
            for n in range(clients)
        ]
        (topic,) = aggregate(reports, ["gps"], {}, "s00", {f"s{site:02}": 7.5 for site in range(12)})
        assert len(topic.producer_ways) == 8
        sizes.add(len(msgspec.msgpack.encode(topic)))
    assert len(sizes) == 1


def made_up(client: str, topics: int) -> ClientReport:
    """Within all ranges of what a client may report, and nothing of it true."""
    parts = [ClientTopic(f"gps.{client}.0", True, True, 1 << 53, 1 << 53, 1 << 53, 1 << 53, {5: 1 << 53, 6: 1 << 53})]
    parts += [ClientTopic(f"{'x' * 190}.{client}.{n}", True, True) for n in range(topics - 1)]
    return ClientReport(client, 1e-300, SITE, parts, {f"s{n}": 1e9 for n in range(20)})


def test_what_a_client_makes_up_leaves_a_report_that_can_be_sent_and_read() -> None:
    """One client could make its site's report too large, or its figures too large to be read: the site was lost."""
    clients = [*reports(3), made_up("a", 5000), made_up("b", 5000)]
    topics = aggregate(clients, ["gps", "gps.>"], {"gps": SITE})
    report, body = fitting_report(
        SiteReport("tokyo", 1, topics=topics, arrived=[f"c{n}" for n in range(9000)]), 1 << 20
    )
    assert len(body) <= 1 << 20
    assert decode(body, SiteReport, "msgpack") == report
    names = {topic.topic for topic in report.topics}
    assert {"gps", "gps.>"} <= names, "those with most clients stay"
    assert len(report.arrived) == 5000


def test_patterns_that_nobody_registered_are_compared_with_few_topics_of_a_client() -> None:
    registered = [f"t{n}.*" for n in range(2000)]
    odd = ClientReport("a", 1.0, None, [ClientTopic(f"*.{n}", subscribes=True) for n in range(3000)])
    found = aggregate([odd], registered, {})
    assert max(topic.consumers for topic in found) == 100
