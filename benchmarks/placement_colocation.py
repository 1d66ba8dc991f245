"""Co-location: accuracy beside the paper, time and growth of the planners, distance from the optimum."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.measure import Figure, timed
from threadpoolctl import threadpool_limits

from nearcast.placement.colocation.exact import exact, lower_bound
from nearcast.placement.colocation.incremental import NEW, adjusted
from nearcast.placement.colocation.planners import as_plan, ffd, hybrid, lfs, slowest_first
from nearcast.placement.colocation.problem import ColocationPlan, ColocationTopics, Feasibility, feasibility
from nearcast.placement.colocation.refined import refined
from nearcast.placement.colocation.training import Training, train, validate
from nearcast.placement.colocation.worker_simulation import Arrivals, SimulatedWorker, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from nearcast.placement.colocation.latency_model import LatencyModel

K = 6
# Isolated (test) and k = 2 … 6 (validation) of the paper's Table I and Section VI-B.
PAPER_R2 = {1: 0.97, 2: 0.972, 3: 0.976, 4: 0.984, 5: 0.951, 6: 0.968}


def figures() -> Iterator[Figure]:
    """All figures; one thread, since the matrices are small."""
    with threadpool_limits(1):
        model = yield from accuracy("poisson")
        yield from accuracy("constant")
        yield from growth(model)
        yield from distance(model)


def accuracy(arrivals: Arrivals) -> Generator[Figure, None, LatencyModel]:
    worker = SimulatedWorker(arrivals=arrivals)
    samples, seconds = timed(lambda: simulate(6000, K, worker, seed=1))
    yield Figure(f"{arrivals}: simulate 6,000 runs of 120 s", f"{seconds:.1f} s")
    (model, _), seconds = timed(lambda: train(samples, Training()))
    yield Figure(f"{arrivals}: train for k = 1 … 6", f"{seconds:.1f} s")
    for line in validate(model, simulate(1200, K, worker, seed=2)):
        value = f"R² {line.learned:.3f}, monotone {line.monotone:.3f}"
        yield Figure(f"{arrivals}: {line.topics} topics, 200 new runs", value, f"paper {PAPER_R2[line.topics]}")
    return model


def growth(model: LatencyModel) -> Iterator[Figure]:
    small = request(model, 200, 0.35, seed=1)
    _, literal = timed(lambda: literal_ffd(small))
    _, seconds = timed(lambda: ffd(small, K))
    yield Figure("ffd, 200 topics", f"{seconds:.3f} s", f"one set at a time {literal:.2f} s", literal / seconds)
    yield from doubling("ffd", ffd, model, [1250, 2500, 5000, 10_000], "10,000 topics: < 5 s")
    yield from doubling("lfs", lfs, model, [35, 70, 140, 280], "70 topics: < 10 s")
    yield from doubling("refined", refined, model, [1250, 2500, 5000, 10_000], "near ffd's")
    for n in (70, 280):
        for heaviest in (0.35, 0.6):
            possible = request(model, n, heaviest, seed=3)
            first, base = timed(partial(ffd, possible, K))
            for name, plan in (
                ("hybrid(3)", partial(hybrid, seed_size=3)),
                ("lfs", lfs),
                ("refined", refined),
            ):
                found, seconds = timed(partial(plan, possible, K))
                what = f"{n} topics, loads up to {heaviest}: {name}"
                value = f"{found.workers} workers, {seconds:.2f} s"
                bound = lower_bound(possible, K)
                yield Figure(what, value, f"ffd {first.workers}, {base:.2f} s; bound {bound}", seconds / base)
    possible = request(model, 10_000, 0.35, seed=1)
    current = ffd(possible, K).worker.copy()
    _, whole = timed(lambda: ffd(possible, K))
    current[::100] = NEW
    _, seconds = timed(lambda: adjusted(possible, K, current))
    yield Figure("100 of 10,000 topics placed anew", f"{seconds:.2f} s", f"ffd of all {whole:.2f} s", whole / seconds)


def doubling(
    name: str, plan: Callable[[Feasibility, int], ColocationPlan], model: LatencyModel, sizes: list[int], target: str
) -> Iterator[Figure]:
    """Processor time, which a shared machine disturbs less, with the time on the wall behind it."""
    before = None
    for n in sizes:
        possible = request(model, n, 0.35, seed=1)
        start = time.process_time()
        found, wall = timed(partial(plan, possible, K))
        seconds = time.process_time() - start
        value = f"{seconds:.2f} s (wall {wall:.2f} s), {found.workers} workers"
        against = "" if before is None else f"half of it {before:.2f} s"
        yield Figure(f"{name}, {n:,} topics", value, against, seconds / before if before else None, target)
        before = seconds


def distance(model: LatencyModel) -> Iterator[Figure]:
    for n in (12, 16):
        workers: Counter[str] = Counter()
        for seed in range(10):
            for heaviest, tightest in ((0.35, 1000), (0.5, 1000), (0.8, 1000), (0.35, 150), (0.5, 150)):
                possible = request(model, n, heaviest, seed, tightest)
                plans = {
                    "exact": exact(possible, K),
                    "ffd": ffd(possible, K),
                    "hybrid(3)": hybrid(possible, K, 3),
                    "lfs": lfs(possible, K),
                    "refined": refined(possible, K),
                }
                workers.update({name: plan.workers for name, plan in plans.items()})
        for name, count in workers.items():
            above = f"{count / workers['exact'] - 1:.1%} above exact"
            target = "refined: within 2 %" if name == "refined" else ""
            yield Figure(f"{n} topics, 50 requests: {name}", f"{count} workers", above, None, target)


def request(model: LatencyModel, n: int, heaviest: float, seed: int, tightest: float = 1000) -> Feasibility:
    """Topics of 10 to 40 ms with loads up to `heaviest` and bounds from `tightest` to 1,000 ms."""
    generator = np.random.default_rng(seed)
    processing = generator.uniform(10, 40, n)
    rate = np.maximum(1, generator.uniform(0.01, heaviest, n) / processing * 1000)
    topics = ColocationTopics(rate, processing, generator.uniform(tightest, 1000, n))
    return feasibility(model, topics, margin=0.1)


def literal_ffd(possible: Feasibility) -> ColocationPlan:
    """Algorithm 1 as printed: one question to the feasibility function at a time."""
    workers: list[list[int]] = []
    for topic in slowest_first(possible).tolist():
        for worker in workers:
            if len(worker) < K and possible.sets(np.array([[*worker, topic]]))[0]:
                worker.append(topic)
                break
        else:
            workers.append([topic])
    return as_plan(possible, workers)
