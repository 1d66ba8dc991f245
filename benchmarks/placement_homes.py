"""Speed of the home planners: RELOC against Algorithm 1 in plain Python, and a large city."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.measure import Figure, in_fresh_process, median_seconds, timed
from tests.placement.homes.literal import LiteralReloc, literal_factors, literal_relation_matrix

from nearcast.lab.workloads.city import CityParameters, city, random_members
from nearcast.placement.homes import HomesProblem, RefineParameters, RelocParameters, refine, refined, reloc
from nearcast.placement.homes.planners import cluster_sites
from nearcast.placement.homes.relations import factors

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUR_CLUSTERS = RelocParameters(clusters=4)


def figures() -> Iterator[Figure]:
    yield from _paper_size()
    yield from _large()


def _large() -> Iterator[Figure]:
    """Processor time is what grows with the work; the clock also counts waiting for others."""
    before = 0.0
    for share in (8, 4, 2, 1):
        (clock, processor, delay), _, megabytes = in_fresh_process(large_reloc, share, 16)
        yield Figure(
            f"reloc, K = 16, {100_000 // share:,} clients, {20_000 // share:,} topics, 100 sites",
            f"{processor:.1f} s of processor, {clock:.1f} s, {megabytes:.0f} MB, {delay:.2f} ms",
            f"half of it: {before:.1f} s of processor" if before else "",
            processor / before if before else None,
            "60 s, 2 GB" if share == 1 else "",
        )
        before = processor
    (clock, processor, delay), _, megabytes = in_fresh_process(large_reloc, 1, None)
    measured = f"{processor:.1f} s of processor, {clock:.1f} s, {megabytes:.0f} MB, {delay:.2f} ms"
    yield Figure("the same, K chosen", measured, target="60 s, 2 GB")
    (clock, processor, start, delay), _, megabytes = in_fresh_process(large_refine)
    measured = f"{processor:.1f} s of processor, {clock:.1f} s, {megabytes:.0f} MB, {delay:.2f} ms"
    yield Figure("refine from reloc, K = 16, 5 rounds", measured, f"start: {start:.2f} ms", delay / start)


def _paper_size() -> Iterator[Figure]:
    problem = city(random_members(64, 600, seed=1), CityParameters(spread_km=10), seed=2)
    plan = reloc(problem, FOUR_CLUSTERS)
    ours = median_seconds(lambda: reloc(problem, FOUR_CLUSTERS), repeat=15)
    clusters = cluster_sites(problem.site_site_ms, 4).tolist()
    given = factors(problem.members, FOUR_CLUSTERS.rank, 0).tolist()
    loop = median_seconds(lambda: LiteralReloc(problem, clusters, given, 100).run(), repeat=5)
    homes = LiteralReloc(problem, clusters, given, 100).run()
    assert homes == plan.home.tolist()
    _, factorise = timed(lambda: literal_factors(literal_relation_matrix(problem), 16, iterations=7))
    paper_size = "64 topics, 16 sites, 600 clients"
    yield Figure(
        f"reloc, {paper_size}",
        f"{ours * 1e3:.1f} ms",
        f"Algorithm 1 in plain Python, lines 18 to 45: {(loop + factorise) * 1e3:.0f} ms",
        (loop + factorise) / ours,
        "20",
    )
    yield Figure(
        "the same, plain Python given the factors of Z",
        f"{ours * 1e3:.1f} ms",
        f"lines 20 to 45: {loop * 1e3:.0f} ms",
        loop / ours,
    )
    best, seconds = timed(lambda: refined(problem))
    yield Figure(
        f"refined, {paper_size}",
        f"{seconds:.2f} s, {best.delay_ms:.3f} ms",
        f"reloc: {plan.delay_ms:.3f} ms",
        best.delay_ms / plan.delay_ms,
    )


def large_city(share: int) -> HomesProblem:
    """A hundred sites at the paper's density; one part in `share` of 100,000 clients and 20,000 topics."""
    members = random_members(20_000 // share, 100_000 // share, seed=1)
    size = CityParameters(sites=100, field_km=62.5, storage=32_000 / share, compute=160_000 / share)
    return city(members, size, seed=2)


def large_reloc(share: int, clusters: int | None) -> tuple[float, float, float]:
    """Seconds by the clock and of processor, and the delay; the libraries are loaded before."""
    reloc(city(random_members(4, 20, seed=0)), FOUR_CLUSTERS)
    problem = large_city(share)
    began = time.process_time()
    plan, clock = timed(lambda: reloc(problem, RelocParameters(clusters=clusters)))
    return clock, time.process_time() - began, plan.delay_ms


def large_refine() -> tuple[float, float, float, float]:
    """The same for a few rounds of `refine`, and the delay before and after."""
    problem = large_city(1)
    start = reloc(problem, RelocParameters(clusters=16))
    began = time.process_time()
    plan, clock = timed(lambda: refine(problem, start.home, RefineParameters(rounds=5)))
    return clock, time.process_time() - began, start.delay_ms, plan.delay_ms
