"""Samples to learn from without a testbed: a simulated worker serves k topics, first come, first served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.progress import Advance

__all__ = [
    "Arrivals",
    "Samples",
    "SimulatedWorker",
    "arrival_times",
    "joined",
    "latencies_ms",
    "messages_ms",
    "overhead_ms",
    "p90_ms",
    "simulate",
]

Arrivals = Literal["constant", "poisson"]
SATURATED = 0.8
_TRIED_OVERHEADS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_REPEATS = 10


@dataclass(frozen=True)
class Samples:
    """What runs measured, one row per topic of a run. Topics of the same run shared a worker."""

    run: Ints
    topic: Ints
    rate: Floats
    processing_ms: Floats
    p90_ms: Floats


def joined(parts: Sequence[Samples]) -> Samples:
    """Samples of several sources as one; runs of different sources stay apart."""
    first = np.cumsum([0, *(part.run.max(initial=-1) + 1 for part in parts)])
    run = np.concatenate([part.run + offset for part, offset in zip(parts, first[:-1], strict=True)])
    names = ("topic", "rate", "processing_ms", "p90_ms")
    return Samples(run, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class SimulatedWorker:
    """How a run goes and what its topics look like.

    The paper runs two minutes; its public code drops the first fifth and publishes at exponential intervals,
    its text says at a constant rate. Topics draw a processing time from a range and share a total load
    (messages/s × processing time; 1 is all the worker has) drawn from another, so that the samples are dense
    where a plan is decided: the paper's draw, each topic up to what it could bear alone, overloads a single
    server in nearly every run of three topics or more. A real worker adds `overhead_ms` to each message.
    """

    arrivals: Arrivals = "poisson"
    seconds: float = 120.0
    warm_up: float = 0.2
    processing_ms: tuple[float, float] = (10.0, 40.0)
    load: tuple[float, float] = (0.05, 1.1)
    near_saturation: float = 0.5  # share of the runs whose load is at least SATURATED, where p90 differs most
    overhead_ms: float = 0.0


def arrival_times(rate: float, seconds: float, arrivals: Arrivals, generator: np.random.Generator) -> Floats:
    """When a topic's messages arrive: evenly spaced from a random phase, or a Poisson process."""
    if arrivals == "constant":
        return np.arange(generator.uniform(0, 1 / rate), seconds, 1 / rate)
    return np.sort(generator.uniform(0, seconds, generator.poisson(rate * seconds)))


def latencies_ms(arrival: Floats, service: Floats) -> Floats:
    """Latency of each message at a single server, given sorted arrivals and service times in seconds.

    A message starts when it is there and the one before it is done. Written out, message n is done at
    max over m ≤ n of (arrival m + service of m…n): a running maximum instead of an event loop.
    """
    served = np.cumsum(service)
    done = served + np.maximum.accumulate(arrival - served + service)
    return np.asarray((done - arrival) * 1000)


def p90_ms(rates: Floats, processing_ms: Floats, worker: SimulatedWorker, generator: np.random.Generator) -> Floats:
    """The 90th percentile latency of each topic of one run; infinite for one that had no message."""
    per_topic = messages_ms(rates, processing_ms, worker, generator)
    return np.array([np.percentile(x, 90) if len(x) else np.inf for x in per_topic])


def messages_ms(
    rates: Floats, processing_ms: Floats, worker: SimulatedWorker, generator: np.random.Generator
) -> list[Floats]:
    """The latency of each message of each topic of one run, after the warm-up."""
    times = [arrival_times(rate, worker.seconds, worker.arrivals, generator) for rate in rates]
    topic = np.repeat(np.arange(len(rates)), [len(t) for t in times])
    arrival = np.concatenate(times)
    order = np.argsort(arrival, kind="stable")
    arrival, topic = arrival[order], topic[order]
    latency = latencies_ms(arrival, (processing_ms[topic] + worker.overhead_ms) / 1000)
    counted = arrival >= worker.warm_up * worker.seconds
    return [latency[counted & (topic == t)] for t in range(len(rates))]


def simulate(runs: int, k: int, worker: SimulatedWorker, seed: int, advance: Advance = no_progress) -> Samples:
    """Simulate runs of 1, 2, …, k topics in turn: a model for k needs samples of every number up to k."""
    generator = np.random.default_rng(seed)
    sizes = np.arange(runs) % k + 1
    processing, rates, p90 = [], [], []
    for done, size in enumerate(sizes):
        advance(done / runs)
        own_processing = generator.uniform(*worker.processing_ms, size)
        low, high = worker.load
        if generator.random() < worker.near_saturation:
            low = min(max(low, SATURATED), high)
        shares = generator.dirichlet(np.ones(size)) * generator.uniform(low, high)
        # At least a message a second, as the paper's publishers: fewer make no percentile in two minutes.
        own_rate = np.maximum(1.0, shares / own_processing * 1000)
        processing.append(own_processing)
        rates.append(own_rate)
        p90.append(p90_ms(own_rate, own_processing, worker, generator))
    return Samples(
        run=np.repeat(np.arange(runs), sizes),
        topic=np.concatenate([np.arange(size) for size in sizes]),
        rate=np.concatenate(rates),
        processing_ms=np.concatenate(processing),
        p90_ms=np.concatenate(p90),
    )


def overhead_ms(measured: Samples, worker: SimulatedWorker, seed: int = 0) -> float:
    """What a real worker adds to each message's processing time, found from a few measured runs: the overhead with
    which simulated runs of the same topics come closest to them (in log p90)."""
    errors = []
    for overhead in _TRIED_OVERHEADS:
        generator = np.random.default_rng(seed)
        with_it, error = replace(worker, overhead_ms=overhead), 0.0
        for run in np.unique(measured.run):
            rows = measured.run == run
            rates, processing = measured.rate[rows], measured.processing_ms[rows]
            tries = np.log([p90_ms(rates, processing, with_it, generator) for _ in range(_REPEATS)])
            expected = np.where(np.isfinite(tries), tries, np.nan)
            missed = np.log(measured.p90_ms[rows]) - np.nanmean(expected, axis=0)
            error += float(np.nansum(missed**2))
        errors.append(error)
    return _TRIED_OVERHEADS[int(np.argmin(errors))]
