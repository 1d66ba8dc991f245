"""The simulated worker: its running maximum is an event loop, and queueing theory's numbers come out."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.placement.colocation.worker_simulation import (
    Arrivals,
    SimulatedWorker,
    arrival_times,
    joined,
    latencies_ms,
    overhead_ms,
    p90_ms,
    simulate,
)


def event_loop(arrival: list[float], service: list[float]) -> list[float]:
    """A discrete-event simulation by the letter: arrivals and departures in order, one queue."""
    events = [(at, 1, message) for message, at in enumerate(arrival)]
    heapq.heapify(events)
    queue: list[int] = []
    done = [0.0] * len(arrival)
    busy = False
    while events:
        now, is_arrival, message = heapq.heappop(events)
        if is_arrival:
            queue.append(message)
        else:
            done[message] = now
            busy = False
        if queue and not busy:
            served = queue.pop(0)
            heapq.heappush(events, (now + service[served], 0, served))
            busy = True
    return [(end - start) * 1000 for end, start in zip(done, arrival, strict=True)]


times = st.floats(0, 10, allow_nan=False)


@given(st.lists(st.tuples(times, st.floats(0.001, 2)), min_size=1, max_size=30))
def test_the_running_maximum_is_the_event_loop(messages: list[tuple[float, float]]) -> None:
    messages = sorted(messages)
    arrival, service = [a for a, _ in messages], [s for _, s in messages]
    found = latencies_ms(np.array(arrival), np.array(service))
    np.testing.assert_allclose(found, event_loop(arrival, service), atol=1e-6)


def test_constant_arrivals_below_capacity_do_not_wait() -> None:
    worker = SimulatedWorker(arrivals="constant")
    found = p90_ms(np.array([30.0]), np.array([20.0]), worker, np.random.default_rng(0))
    np.testing.assert_allclose(found, 20.0)


def test_poisson_arrivals_wait_as_long_as_pollaczek_and_khinchine_say() -> None:
    generator = np.random.default_rng(1)
    rate, service, load = 35.0, 0.02, 0.7
    arrival = arrival_times(rate, 20_000, "poisson", generator)
    mean = latencies_ms(arrival, np.full(len(arrival), service)).mean()
    assert mean == pytest.approx(1000 * (service + load * service / (2 * (1 - load))), rel=0.02)


def test_latency_grows_with_the_background() -> None:
    """Section IV-B: a topic that shares its worker is slower, and far slower beyond the threshold."""
    alone, among, overloaded = (
        p90_ms(np.full(k, 10.0), np.full(k, 20.0), SimulatedWorker(), np.random.default_rng(2))[0] for k in (1, 4, 6)
    )
    assert alone < among < overloaded
    assert overloaded > 10_000


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_simulate_covers_every_size_and_repeats_itself(arrivals: Arrivals) -> None:
    worker = SimulatedWorker(arrivals=arrivals, seconds=20)
    samples = simulate(9, 3, worker, seed=5)
    assert np.bincount(np.bincount(samples.run)).tolist() == [0, 3, 3, 3]
    assert (samples.p90_ms >= samples.processing_ms * (1 - 1e-9)).all()
    np.testing.assert_array_equal(samples.p90_ms, simulate(9, 3, worker, seed=5).p90_ms)
    assert (samples.p90_ms != simulate(9, 3, worker, seed=6).p90_ms).any()


def test_the_overhead_of_a_worker_is_found_from_few_runs_of_it() -> None:
    real = SimulatedWorker(seconds=60, load=(0.1, 0.8), overhead_ms=3.0)
    measured = simulate(24, 3, real, seed=5)
    found = overhead_ms(measured, SimulatedWorker(seconds=60), seed=1)
    assert 2.0 <= found <= 4.0
    assert (
        overhead_ms(simulate(24, 3, SimulatedWorker(seconds=60, load=(0.1, 0.8)), seed=5), SimulatedWorker(seconds=60))
        <= 0.5
    )


def test_runs_of_different_sources_stay_apart_when_joined() -> None:
    one, two = (simulate(4, 2, SimulatedWorker(seconds=5), seed) for seed in (1, 2))
    both = joined([one, two])
    assert len(np.unique(both.run)) == 8
    assert both.p90_ms.tolist() == [*one.p90_ms.tolist(), *two.p90_ms.tolist()]
