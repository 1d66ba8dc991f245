"""ePulsar, Fig. 3 (how well coordinates tell round trips) and Fig. 6 (bytes of monitoring against clients)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from nearcast.coordinates import Coordinate
from nearcast.coordinates.simulation import Simulation
from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict
from nearcast.protocol.reports import ClientReport, ClientTopic
from nearcast.site.agent.aggregation import aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearcast.lab.experiments.experiment import Point, Row, Task
    from nearcast.lab.experiments.results import Results

__all__ = ["EXPERIMENTS"]

JITTER, ROUNDS = 0.05, 600  # a node samples about once a second: ten minutes, as the paper waits
PERIOD_S = 5.0


def _error_points(quick: bool) -> list[Point]:
    nodes = (4, 16, 64) if quick else (2, 4, 8, 16, 32, 64, 128)
    return [{"nodes": float(n), "rtt_ms": rtt} for n in nodes for rtt in (10.0, 40.0, 80.0)]


def measure_error(task: Task) -> Iterator[Row]:
    """Nodes around one switch, all links alike; live updates with 5 % jitter."""
    nodes, rtt = int(task.number("nodes")), task.number("rtt_ms")
    source, destination = np.nonzero(~np.eye(nodes, dtype=bool))
    simulation = Simulation(nodes, source, destination, seed=task.seed)
    rng = np.random.default_rng(task.seed)
    first = np.arange(nodes) * (nodes - 1)
    for _ in range(ROUNDS):
        links = first + rng.integers(0, nodes - 1, nodes)
        simulation.step(links, rtt * (1 + JITTER * rng.standard_normal(nodes)).clip(0.5))
    apart = np.linalg.norm(simulation.position[source] - simulation.position[destination], axis=1)
    estimate = apart + simulation.height[source] + simulation.height[destination]
    error = np.abs(estimate - rtt)
    yield {"method": f"{rtt:g} ms", "error_ms": float(error.mean()), "error_share": float(error.mean() / rtt)}


def _error_claims(results: Results) -> list[Claim]:
    highest, share = results.most("error_ms"), results.most("error_share")
    sizes = [float(n) for n in results.values("nodes")]
    few, many = (results.mean("error_ms", nodes=n) for n in (sizes[0], sizes[-1]))
    grows = results.difference("error_ms", {"nodes": sizes[-1]}, {"nodes": sizes[0]})
    return [
        Claim(
            "The error is small.",
            "below 3.5 ms and 6 %",
            f"at most {highest:.1f} ms and {share:.1%} (mean over a run's pairs)",
            verdict(highest < 3.5, share < 0.06),
        ),
        Claim(
            "It does not grow with the number of nodes.",
            "relatively constant",
            f"{few.text(2, ' ms')} with {sizes[0]:g}, {many.text(2, ' ms')} with {sizes[-1]:g} nodes (constant: 1 ms)",
            verdict(grows.high < 1.0),
        ),
    ]


def _report_points(quick: bool) -> list[Point]:
    topics = (1, 16, 64) if quick else (1, 8, 16, 32, 64, 128)
    return [{"topics": float(t), "clients": float(c)} for t in topics for c in (4, 16, 64)]


def measure_reports(task: Task) -> Iterator[Row]:
    """What a site's report has about its topics, encoded as it travels; beside the coordinates of all clients."""
    rng = np.random.default_rng(task.seed)
    topics, each = int(task.number("topics")), int(task.number("clients"))
    names = [f"topic-{t}" for t in range(topics)]
    clients = [
        ClientReport(
            f"client-{t}-{c}",
            PERIOD_S,
            Coordinate(tuple(rng.normal(0, 30, 8).tolist()), float(rng.uniform(1, 9)), 0.0, 0.2),
            [ClientTopic(names[t], publishes=c % 2 == 0, subscribes=c % 2 == 1)],
        )
        for t in range(topics)
        for c in range(each)
    ]
    encode = msgspec.msgpack.Encoder().encode
    managing = dict.fromkeys(names, Coordinate((0.0,) * 8, 1.0, 0.0, 0.2))
    reported = len(encode(aggregate(clients, names, managing)))
    everything = len(encode([(client.client, client.coordinate, client.topics[0].topic) for client in clients]))
    for method, size in ((f"aggregated, {each}", reported), (f"all, {each}", everything)):
        yield {"method": method, "kbit_s": 8 * size / PERIOD_S / 1000, "bytes_per_topic": size / topics}


def _report_claims(results: Results) -> list[Claim]:
    most = max(float(t) for t in results.values("topics"))
    part = results.where(topics=most)
    few, many = (part.mean("bytes_per_topic", method=f"aggregated, {c}") for c in (4, 64))
    other = part.mean("bytes_per_topic", method="all, 64")
    return [
        Claim(
            "What is reported of a topic does not depend on its clients.",
            "independent",
            f"{few.text(0)} bytes with 4, {many.text(0)} with 64 clients",
            verdict(abs(many.mean / few.mean - 1) < 0.02),
        ),
        Claim(
            "All pairs' reports grow with the clients.",
            "shown in Fig. 6",
            f"{other.text(0)} bytes a topic with 64 clients, {other.mean / many.mean:.1f} times as much",
            verdict(other.mean > 3 * many.mean),
        ),
    ]


EXPERIMENTS = (
    Experiment(
        name="coordinate-error",
        paper="002",
        figure="Fig. 3",
        title="Error of network coordinates around one switch",
        about="All links alike; every node samples one other per round, 600 rounds, 5 % jitter. The arithmetic is that "
        "of live nodes (a test holds them equal).",
        points=_error_points,
        seeds=(5, 20),
        measure=measure_error,
        claims=_error_claims,
        panels=[
            Panel("nodes", "error_ms", "nodes", "mean error (ms)", limits={"paper: below 3.5 ms": 3.5}, log_x=True),
            Panel("nodes", "error_share", "nodes", "mean error / round trip", limits={"paper: 6 %": 0.06}, log_x=True),
        ],
    ),
    Experiment(
        name="monitoring-bytes",
        paper="002",
        figure="Fig. 6",
        title="Monitoring traffic of one site",
        about="The topics' part of a site's report, encoded as it is sent every 5 s, without measured ways; beside it "
        "the coordinates of all clients in the same encoding. The number is that of clients per topic.",
        points=_report_points,
        seeds=(1, 3),
        measure=measure_reports,
        claims=_report_claims,
        panels=[
            Panel("topics", "kbit_s", "topics of the site", "kbit/s", log_x=True, log_y=True),
            Panel("topics", "bytes_per_topic", "topics of the site", "bytes per topic", log_x=True, log_y=True),
        ],
    ),
)
