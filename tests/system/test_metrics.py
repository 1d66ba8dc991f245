"""Every process serves metrics that Prometheus's own parser reads, and the dashboard asks only for those."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.system.control import coordinator

import nearcast
from nearcast.cluster.driver_metrics import DriverMetrics
from nearcast.cluster.driver_progress import DriverProgress
from nearcast.coordinator.metrics import coordinator_metrics
from nearcast.domain.site import SiteSpec
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError
from nearcast.metrics import LoopCollector, MetricsServer, listen_near
from nearcast.testing import until

DEPLOY = Path(__file__).parents[2] / "deploy" / "grafana"
Families = dict[str, Metric]


def read(url: str) -> Families:
    with urllib.request.urlopen(url, timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family is described twice"
    for family in families:
        series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(series) == len(set(series)), f"{family.name} has the same series twice"
    return {family.name: family for family in families}


def value(families: Families, family: str, **labels: str) -> float:
    (found,) = [s.value for s in families[family].samples if labels.items() <= s.labels.items()]
    return float(found)


def metrics_url(spec: SiteSpec) -> str:
    return f"http://{spec.metrics_host}:{spec.metrics_port}/metrics"


@pytest.fixture
def cluster() -> DriverMetrics:
    progress = DriverProgress()
    counts = {"rows": 5, "refused": 1, "removed": 0, "results": 7}
    progress.add("dataset reports", **counts, stages={"spark": 0.25, "match": 0.5})
    progress.note('channel "odd"\nname', problem="stopped", lag=3)
    return DriverMetrics(progress)


async def test_sites_workers_coordinator_and_cluster(city, cluster: DriverMetrics) -> None:
    topic = TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1, bound_ms=50)
    async with city(topic, names=("tokyo", "cloud"), report_seconds=0.3) as c, coordinator(c) as control:
        async with nearcast.connect(coordinator=c.url("tokyo"), report_seconds=0.2) as client:
            async with client.subscribe("gps.car7") as notifications:
                for n in range(5):
                    await client.publish("gps.car7", {"n": n})
                    await anext(notifications)
                await client.publish("gps.car7", {"do": "raise"})
                site: Families = {}
                url, home = (metrics_url(c.sites[name].spec) for name in ("tokyo", client.home))

                async def measured() -> bool:
                    nonlocal site
                    site = await asyncio.to_thread(read, url)
                    letters = site["nearcast_topic_dead_letters"].samples  # none of a worker that is too busy to answer
                    delivered = (await asyncio.to_thread(read, home))["nearcast_topic_delivery_p90_seconds"].samples
                    complete = bool(site["nearcast_site_round_trip_seconds"].samples)
                    complete &= [(one.labels["topic"], one.value) for one in letters] == [("gps.*", 1)]
                    return complete and [sample.labels["topic"] for sample in delivered] == ["gps.*"]

                await until(measured)
        assert value(site, "nearcast_worker_notified_messages", worker="worker-0") == 5
        latency = {s.name: s.value for s in site["nearcast_topic_processing_latency_seconds"].samples}
        assert latency["nearcast_topic_processing_latency_seconds_count"] > 0
        assert value(site, "nearcast_store_up") == 1
        assert value(site, "nearcast_site_coordinator_up") == 1
        assert value(site, "nearcast_broker_received_messages") > 5
        assert 0 < value(site, "nearcast_site_round_trip_seconds", peer="cloud") < 1
        assert value(site, "nearcast_build_info", version=nearcast_version()) == 1
        await control.ask("topic", "move", name="gps.*", to=["cloud"])

        async def collect() -> list[Metric]:
            return list(coordinator_metrics(control.coordinator))

        server = MetricsServer(LoopCollector(collect), "127.0.0.1", 0)
        leader = await asyncio.to_thread(read, server.url)
        await server.stop_from_loop()
    assert value(leader, "nearcast_coordinator_leading") == 1
    assert value(leader, "nearcast_coordinator_sites") == 2
    assert value(leader, "nearcast_coordinator_moves", kind="topic", goal="request", outcome="done") == 1
    assert value(leader, "nearcast_coordinator_passes") > 0
    names = {sample for families in (site, leader, of_cluster(cluster)) for sample in sample_names(families)}
    check_deployed_queries(names)


def nearcast_version() -> str:
    from importlib.metadata import version

    return version("nearcast")


def of_cluster(cluster: DriverMetrics) -> Families:
    server = MetricsServer(cluster, "127.0.0.1", 0)
    try:
        return read(server.url)
    finally:
        server.stop()


def sample_names(families: Families) -> set[str]:
    """What can be asked for, also of families without a sample at this moment."""
    ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return {family.name + end for family in families.values() for end in ends.get(family.type, [""])}


def check_deployed_queries(names: set[str]) -> None:
    """The dashboard and the alerts ask for metrics that exist; panels do not overlap."""
    dashboard = json.loads((DEPLOY / "nearcast.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    queries += [rule["expr"] for rule in rules]
    assert all(rule["annotations"]["summary"] for rule in rules)
    asked = {name for query in queries for name in re.findall(r"\bnearcast_\w+", query)}
    assert len(asked) > 25
    assert asked - names == set()


def test_the_data_cluster(cluster: DriverMetrics) -> None:
    families = of_cluster(cluster)
    assert value(families, "nearcast_cluster_rows", producer="dataset reports") == 5
    assert value(families, "nearcast_cluster_stage_seconds", producer="dataset reports", stage="match") == 0.5
    assert value(families, "nearcast_cluster_failed", producer='channel "odd"\nname') == 1


def test_a_port_in_use(cluster: DriverMetrics) -> None:
    first = listen_near(cluster, "127.0.0.1:0", "")
    try:
        with pytest.raises(InputError, match=f"metrics cannot be served on 127.0.0.1:{first.port}: Address already"):
            listen_near(cluster, f"127.0.0.1:{first.port}", "")
        second = listen_near(cluster, "", f"127.0.0.1:{first.port}")
        assert second.port != first.port
        second.stop()
    finally:
        first.stop()
    with pytest.raises(InputError, match="the address for metrics is 'here'; allowed: HOST:PORT"):
        listen_near(cluster, "here", "")
