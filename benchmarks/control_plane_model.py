"""The control plane without servers: the size of reports, and one pass of the loop. Run by control_plane.py."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec
import numpy as np
from benchmarks.measure import Figure, in_fresh_process

from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.coordinates import Coordinate
from nearcast.coordinator.detectors import detect
from nearcast.coordinator.model.build_model import build_model
from nearcast.coordinator.model.client_columns import client_columns
from nearcast.coordinator.monitor import Monitor
from nearcast.coordinator.plan import make_plan
from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.control import TopicRecord
from nearcast.protocol.registration import ClientRecord, SiteInfo
from nearcast.protocol.reports import BrokerFigures, ClientReport, ClientTopic, SiteReport
from nearcast.site.agent.aggregation import aggregate

__all__ = ["loop", "monitoring"]


def monitoring() -> Iterable[Figure]:
    """Bytes per topic in a site's report, against one coordinate per client."""
    rng = np.random.default_rng(1)
    where = Coordinate((0.0,) * 8, 1.0)
    first = None
    for count in (1, 10, 100, 1000):
        places = [Coordinate(tuple(rng.normal(0, 30, 8).tolist()), 1.0) for _ in range(count)]
        reports = [
            ClientReport(
                f"c{n}", 5.0, place, [ClientTopic("gps", n % 2 == 0, True, 50, 5000, 50, 5000, {20: 3, 21: 4})]
            )
            for n, place in enumerate(places)
        ]
        (topic,) = aggregate(reports, ["gps"], {"gps": where})
        size = len(msgspec.msgpack.encode(topic))
        every = sum(len(msgspec.msgpack.encode(report)) for report in reports)
        first = first or size
        yield Figure(
            f"bytes per topic and report, {count} clients", str(size), f"every client: {every}", size / every,
            f"constant ({size - first:+d})",
        )  # fmt: skip


def one_pass(topics: int, sites: int, clients: int, skew: float = 1.0) -> dict[str, float]:
    """Snapshot, detection and plan over made-up reports; seconds of each. skew: above 1, the first sites have most."""
    rng = np.random.default_rng(1)

    def place(row: np.ndarray) -> Coordinate:
        return Coordinate(tuple(row.tolist()), 1.0)

    site_at = rng.normal(0, 60, (sites, 8))
    names = [f"s{n}" for n in range(sites)]
    infos = {name: SiteInfo(name, f"nats://{name}", name, 1) for name in names}
    topic_site = rng.integers(0, sites, topics)
    records = {
        f"t{n}": TopicRecord(
            TopicSpec(f"t{n}", (names[topic_site[n]],), bound_ms=150.0),
            1,
            (WorkerId(names[topic_site[n]], "worker-0"),),
        )
        for n in range(topics)
    }
    home = (sites * rng.random(clients) ** skew).astype(int)
    client_at = site_at[home] + rng.normal(0, 3, (clients, 8))
    takes = rng.integers(0, topics, (clients, 2))
    registered = {
        f"c{n}": ClientRecord(f"c{n}", names[home[n]], place(client_at[n]), [f"t{takes[n, 0]}"], [f"t{takes[n, 1]}"])
        for n in range(clients)
    }
    parts: dict[str, list[ClientReport]] = {name: [] for name in names}
    for n, client in enumerate(registered.values()):
        said = [
            ClientTopic(client.publishes[0], True, False, 5, 500),
            ClientTopic(client.subscribes[0], False, True, 0, 0, 5, 500),
        ]
        parts[names[home[n]]].append(ClientReport(client.name, 5.0, client.coordinate, said))
    managing = {f"t{n}": place(site_at[topic_site[n]]) for n in range(topics)}
    reports = {
        name: SiteReport(
            name, 1, place(site_at[n]), BrokerFigures(messages_out=1000.0, cpu=0.3),
            topics=aggregate(parts[name], _named(parts[name]), managing),
        )
        for n, name in enumerate(names)
    }  # fmt: skip
    settings = CoordinatorSettings()
    monitor = Monitor(settings.site_lost_after)
    # Made when a client came, not every pass.
    columns = client_columns(registered, tuple(sorted(records)), tuple(sorted(infos)))
    arrived = time.perf_counter()
    for report in reports.values():
        monitor.take(report, 0.0)
    began = time.perf_counter()
    model = build_model(infos, records, columns, monitor, 0.0, settings)
    modelled = time.perf_counter()
    found = detect(model, settings, frozenset(names))
    detected = time.perf_counter()
    plan = make_plan(model, settings, {}, 0.0)
    planned = time.perf_counter()
    return {
        "taking in all reports": began - arrived,
        "model": modelled - began,
        "detect": detected - modelled,
        "plan": planned - detected,
        "whole": planned - began,
        "anomalies": len(found),
        "moves": len(plan.accepted),
    }


def _named(reports: list[ClientReport]) -> list[str]:
    return sorted({part.topic for report in reports for part in report.topics})


def loop() -> Iterable[Figure]:
    """One pass of the loop, growing by doubling."""
    for share, skew in ((0.25, 1.0), (0.5, 1.0), (1.0, 1.0), (1.0, 3.0)):
        size = (int(10_000 * share), 100, int(100_000 * share))
        spent, _, megabytes = in_fresh_process(one_pass, *size, skew)
        homes = "homes so skewed that all are balanced; " if skew > 1 else ""
        what = f"{size[0]} topics, {size[1]} sites, {size[2]} clients; {homes}{spent['moves']:.0f} moves planned"
        steps = ", ".join(f"{step} {spent[step]:.2f}" for step in ("model", "detect", "plan"))
        before = f"{spent['taking in all reports']:.2f} s to take in the reports as they came"
        detail = f"{spent['whole']:.2f} s ({steps}), after {before}; {megabytes:.0f} MB"
        yield Figure(what, detail, "", None, "2 s, 1 GB at the largest")
