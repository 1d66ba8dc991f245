"""Coordinates: cost of an update, growth of the simulator, and accuracy on made-up and real round trips.

NEARCAST_DATA=<folder with wonderproxy/ and aws/> adds the figures on real round trips.
"""

from __future__ import annotations

import copy
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import pyarrow.csv
from benchmarks.measure import Figure, median_seconds, timed

from nearcast.coordinates import Node, VivaldiSettings
from nearcast.coordinates.optimisation import optimise
from nearcast.coordinates.simulation import Simulation, fit, relative_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

    # nodes, source, destination, round trip; sorted by source, every node with as many links
    Links = tuple[int, Ints, Ints, Floats]

LOOK = 25  # rounds
SMOOTH = 8  # looks: with few nodes the median jumps
KM_PER_MS = 299.792458


class Serf(Simulation):
    """Serf's own arithmetic: the spring sees the adjustment, and height grows by the distance alone."""

    def _spring_length(self, me: Ints, peer: Ints) -> Floats:
        raw = super()._spring_length(me, peer)
        adjusted = raw + self.adjustment[me] + self.adjustment[peer]
        return np.where(adjusted > 0, adjusted, raw)

    def _pushed(
        self, position: Floats, height: Floats, source: Floats, source_height: Floats, force: Floats
    ) -> tuple[Floats, Floats]:
        away = position - source
        apart = np.linalg.norm(away, axis=1)
        scale = force / np.maximum(apart, 1e-300)
        grown = np.maximum(height + (height + source_height) * scale, self.settings.height_min_ms)
        return position + away * scale[:, None], np.where(apart > self.settings.zero_ms, grown, height)


# Serf's ρ of 150 on seconds is √(150² · 1000) on milliseconds.
SERF = VivaldiSettings(gravity_ms=4743.0)


def figures() -> Iterator[Figure]:
    """All of them."""
    yield from speed()
    yield from star_topology()
    folder = os.environ.get("NEARCAST_DATA")
    if folder is None:
        yield Figure("real round trips", "left out: NEARCAST_DATA is not set")
        return
    for name, links in (("WonderProxy", wonderproxy(Path(folder))), ("AWS", aws(Path(folder)))):
        yield from accuracy(name, links)
        yield from moved(name, links)


def speed() -> Iterator[Figure]:
    """The live update, the simulator beside it, and doubling."""
    peers = [Node(seed=i).coordinate for i in range(50)]
    node, updates = Node(seed=99), 5_000

    def live() -> None:
        for i in range(updates):
            node.update(str(i % 50), peers[i % 50], 10.0 + i % 7)

    each = median_seconds(live) / updates
    seconds = {n: median_seconds(partial(walk, made_up(n), 200), 3) for n in (250, 500, 1000, 2000)}
    vectorised = seconds[1000] / 200 / 1000
    yield Figure(
        "one live update",
        f"{each * 1e6:.1f} µs",
        f"{vectorised * 1e6:.2f} µs in the simulator",
        each / vectorised,
        "under 50 µs",
    )
    _, whole = timed(lambda: walk(made_up(1000), 1000))
    yield Figure(
        "1,000 nodes × 1,000 rounds",
        f"{whole:.2f} s",
        f"{each * 1e6:.1f} s with live nodes (a million updates)",
        whole / (each * 1e6),
        "under 60 s",
    )
    for small, large in ((250, 500), (500, 1000), (1000, 2000)):
        what = f"{large:,} nodes × 200 rounds"
        yield Figure(
            what,
            f"{seconds[large]:.3f} s",
            f"{seconds[small]:.3f} s half as many",
            seconds[large] / seconds[small],
        )


def star_topology() -> Iterator[Figure]:
    """Section 5.3 of ePulsar: nodes around a switch, 5 % jitter, 600 rounds (ten minutes)."""
    for nodes, rtt_ms in ((2, 40.0), (8, 40.0), (32, 40.0), (128, 10.0), (128, 40.0), (128, 80.0)):
        source, destination = np.nonzero(~np.eye(nodes, dtype=bool))
        links = (nodes, source, destination, np.full(len(source), rtt_ms))
        ours, serf = (
            float(errors(walk(links, 600, kind, settings), links).mean())
            for kind, settings in ((Simulation, VivaldiSettings()), (Serf, SERF))
        )
        yield Figure(
            f"star of {nodes}, round trip {rtt_ms:.0f} ms: mean error",
            f"{ours:.1%}, {ours * rtt_ms:.2f} ms",
            f"Serf's arithmetic {serf:.1%}",
            ours / serf,
            "below 6 % and 3.5 ms (paper)",
        )


def accuracy(name: str, links: Links) -> Iterator[Figure]:
    """Error after 2,000 rounds of live settings, rounds to get there, and the fit of the command."""
    found = {}
    for kind, settings in ((Simulation, VivaldiSettings()), (Serf, SERF)):
        simulation, medians = start(links, kind, settings), []
        generator = np.random.default_rng(2)
        for _ in range(2_000 // LOOK):
            walk_on(simulation, links, LOOK, generator)
            medians.append(float(np.median(errors(simulation, links))))
        smooth = np.convolve(medians, np.full(SMOOTH, 1 / SMOOTH), "valid")
        away = np.flatnonzero(smooth > 1.1 * np.mean(medians[-20:]))
        rounds = LOOK * (int(away[-1]) + 1 + SMOOTH) if away.size else LOOK
        found[kind] = (*np.percentile(errors(simulation, links), [50, 90]), rounds, simulation)
    median, p90, rounds, _ = found[Simulation]
    other_median, other_p90, _, other = found[Serf]
    what = f"{name}, {links[0]} nodes, {len(links[3]):,} pairs"
    beside = f"Serf's arithmetic {other_median:.1%} / {other_p90:.1%}"
    yield Figure(f"{what}: median / p90 error", f"{median:.1%} / {p90:.1%}", beside, p90 / other_p90)
    found_here, close = errors(found[Simulation][3], links), links[3] < 30
    (near, near_p90), (far, far_p90) = (np.percentile(found_here[at], [50, 90]) for at in (close, ~close))
    yield Figure(
        f"{name}: pairs under 30 ms, median / p90 error",
        f"{near:.1%} / {near_p90:.1%}",
        f"the others {far:.1%} / {far_p90:.1%}",
        near / far,
    )
    yield Figure(f"{name}: rounds until the median stays within 10 % of its end", f"{rounds}")
    folded = [float(np.median(errors(simulation, links, folded=True))) for *_, simulation in found.values()]
    yield Figure(
        f"{name}: median error with the adjustment inside a height of 0 or more",
        f"{folded[0]:.1%}",
        f"Serf's arithmetic {folded[1]:.1%} (mean adjustment {other.adjustment.mean():.0f} ms)",
        folded[0] / folded[1],
    )
    plain, plain_seconds = timed(lambda: fit(*links, seed=1))
    result, seconds = timed(lambda: optimise(plain, *links[1:]))
    short = float(np.median(relative_errors(result.position, result.height, *links[1:])[close]))
    yield Figure(
        f"{name}: `coordinates fit`, median / p90 error",
        f"{result.median_relative_error:.1%} / {result.p90_relative_error:.1%}",
        f"Vivaldi alone {plain.median_relative_error:.1%} / {plain.p90_relative_error:.1%} in {plain_seconds:.1f} s; "
        f"{seconds:.1f} s more; pairs under 30 ms {short:.1%}",
        result.p90_relative_error / plain.p90_relative_error,
    )


def moved(name: str, links: Links, trials: int = 10) -> Iterator[Figure]:
    """A node takes another's place: rounds until its own median error is below 1.5 times what it was."""
    nodes, source, destination, rtt = links
    settled = walk(links, 1_000)
    matrix = np.full((nodes, nodes), np.nan)
    matrix[source, destination] = rtt
    generator = np.random.default_rng(5)
    rounds: dict[bool, list[int]] = {True: [], False: []}
    for _ in range(trials):
        node, place = generator.choice(nodes, 2, replace=False)
        new = matrix.copy()
        new[node], new[:, node] = matrix[place], matrix[:, place]
        new[node, place] = new[place, node] = 1.0
        known = np.isfinite(new[source, destination])
        changed = (nodes, source, destination, np.where(known, new[source, destination], rtt))
        goal = 1.5 * np.median(errors(settled, links)[source == place])
        for told in rounds:
            simulation = copy.deepcopy(settled)
            if told:
                simulation.moved(int(node))
            walker, passed = np.random.default_rng(7), 0
            while passed < 2_000 and np.median(errors(simulation, changed)[source == node]) > goal:
                walk_on(simulation, changed, LOOK, walker)
                passed += LOOK
            rounds[told].append(passed)
    told_median, untold_median = (float(np.median(rounds[told])) for told in (True, False))
    yield Figure(
        f"{name}: rounds until a moved node is right again (median of {trials})",
        f"{told_median:.0f} when it knows that it moved",
        f"{untold_median:.0f} when it does not",
        told_median / untold_median,
    )


def start(links: Links, kind: type[Simulation], settings: VivaldiSettings) -> Simulation:
    """Nodes that know nothing yet."""
    nodes, source, destination, _ = links
    return kind(nodes, source, destination, 1, settings)


def walk(
    links: Links, rounds: int, kind: type[Simulation] = Simulation, settings: VivaldiSettings | None = None
) -> Simulation:
    """A simulation after so many rounds."""
    simulation = start(links, kind, settings or VivaldiSettings())
    walk_on(simulation, links, rounds, np.random.default_rng(2))
    return simulation


def walk_on(simulation: Simulation, links: Links, rounds: int, generator: np.random.Generator) -> None:
    """Each round every node measures a random link of its own, with 5 % jitter."""
    nodes, source, _, rtt = links
    first = np.searchsorted(source, np.arange(nodes + 1))
    degree = np.diff(first)
    for _ in range(rounds):
        chosen = first[:-1] + (generator.random(nodes) * degree).astype(np.int64)
        simulation.step(chosen, rtt[chosen] * generator.lognormal(0, 0.05, nodes))


def errors(simulation: Simulation, links: Links, *, folded: bool = False) -> Floats:
    """Relative error of every pair; folded: as a table with a height of at least 0 keeps it."""
    height = simulation.height + simulation.adjustment
    return relative_errors(simulation.position, np.maximum(height, 0) if folded else height, *links[1:])


def made_up(nodes: int) -> Links:
    """Places in five dimensions with access links, up to 50 peers each."""
    generator = np.random.default_rng(nodes)
    place, access = generator.normal(0, 30, (nodes, 5)), generator.uniform(1, 8, nodes)
    peers = min(50, nodes - 1)
    source = np.repeat(np.arange(nodes), peers)
    destination = (source + np.tile(np.arange(1, peers + 1) * (nodes // (peers + 1) or 1), nodes)) % nodes
    apart = np.linalg.norm(place[source] - place[destination], axis=1)
    return nodes, source, destination, apart + access[source] + access[destination]


def wonderproxy(folder: Path, country: str | None = None) -> Links:
    """Pings between known cities, of one country or all, without those faster than light."""
    table = pyarrow.csv.read_csv(folder / "wonderproxy" / "servers.csv")
    cities = (table.filter(pc.field("country") == country) if country else table).to_pydict()
    place = np.radians(np.column_stack([cities["latitude"], cities["longitude"]]).astype(float))
    spot = {city: i for i, city in enumerate(cities["id"])}
    pings = pyarrow.csv.read_csv(folder / "wonderproxy" / "pings_grouped.csv").to_pydict()
    rows = zip(pings["source"], pings["destination"], pings["avg"], strict=True)
    kept = [(spot[a], spot[b], rtt) for a, b, rtt in rows if a != b and a in spot and b in spot]
    ends = np.array([(a, b) for a, b, _ in kept])
    a, b, rtt = place[ends[:, 0]], place[ends[:, 1]], np.array([rtt for *_, rtt in kept])
    half = np.sin((a[:, 0] - b[:, 0]) / 2) ** 2
    half += np.cos(a[:, 0]) * np.cos(b[:, 0]) * np.sin((a[:, 1] - b[:, 1]) / 2) ** 2
    possible = rtt * KM_PER_MS / 2 >= 2 * 6371 * np.arcsin(np.sqrt(half))
    order = np.lexsort((ends[possible, 1], ends[possible, 0]))
    source, destination = ends[possible][order].T
    return len(spot), source, destination, rtt[possible][order]


def aws(folder: Path) -> Links:
    """Round trips between regions."""
    table = pyarrow.csv.read_csv(folder / "aws" / "aws21_cloudping_rtt_ms.csv")
    matrix = np.column_stack([table.column(name).to_numpy() for name in table.column_names[1:]]).astype(float)
    source, destination = np.nonzero(~np.eye(len(matrix), dtype=bool))
    return len(matrix), source, destination, matrix[source, destination]
