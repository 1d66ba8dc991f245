"""Lost, repeated and late, on made-up results."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.lab.scenarios.clients import ClientResults
from nearcast.lab.scenarios.ledger import GUARD, read_ledger
from nearcast.lab.scenarios.scenario import Scenario
from nearcast.lab.scenarios.swarms import SwarmParameters, swarms

START = 1_000_000.0


def us(seconds: float) -> int:
    """Seconds of the measured time as Unix microseconds."""
    return round((START + seconds) * 1e6)


@pytest.fixture
def scenario() -> Scenario:
    """Two drones, numbers 0 and 1, of one swarm, for ten seconds."""
    return swarms(SwarmParameters(seconds=10.0, swarms=1, drones=2))


def results(**changes: list[tuple[int, ...]]) -> ClientResults:
    """Drone 0 publishes at 1, 2 and 3 s; both drones, subscribed all the time, receive each after 20 ms."""
    made = ClientResults(
        published=[(0, n, us(n), us(n)) for n in (1, 2, 3)],
        received=[(drone, 0, n, us(n + 0.02)) for drone in (0, 1) for n in (1, 2, 3)],
        subscribed=[(drone, "swarm.0", us(-60), us(60)) for drone in (0, 1)],
    )
    for name, rows in changes.items():
        setattr(made, name, rows)
    return made


def test_all_is_well(scenario: Scenario) -> None:
    ledger = read_ledger(scenario, START, [results()])
    assert (len(ledger), ledger.lost, ledger.repeated, ledger.failed) == (6, 0, 0, 0)
    assert ledger.latency_ms == pytest.approx(20.0)
    assert ledger.published.tolist() == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert ledger.subscriber.tolist() == [0, 1, 0, 1, 0, 1]
    assert not ledger.late(20.5).any()


def test_a_delivery_that_never_happened_is_lost_and_late(scenario: Scenario) -> None:
    received = [row for row in results().received if row[:3] != (1, 0, 2)]
    ledger = read_ledger(scenario, START, [results(received=received)])
    assert (len(ledger), ledger.lost, ledger.repeated) == (6, 1, 0)
    assert ledger.late(1e9).sum() == 1
    lost = int(np.argmax(ledger.late(1e9)))
    assert (ledger.subscriber[lost], ledger.published[lost]) == (1, 2.0)


def test_a_second_receipt_is_a_repetition_and_the_first_one_counts(scenario: Scenario) -> None:
    again = [(1, 0, 2, us(2.5)), (1, 0, 2, us(2.6))]
    ledger = read_ledger(scenario, START, [results(received=[*again, *results().received])])
    assert (len(ledger), ledger.lost, ledger.repeated) == (6, 0, 2)
    assert ledger.latency_ms == pytest.approx(20.0)


def test_results_of_several_processes_make_one_ledger(scenario: Scenario) -> None:
    whole = results()
    parts = [
        results(published=whole.published, received=whole.received[:3], subscribed=whole.subscribed[:1]),
        results(published=[], received=whole.received[3:], subscribed=whole.subscribed[1:]),
    ]
    assert (
        read_ledger(scenario, START, parts).latency_ms.tolist()
        == read_ledger(scenario, START, [whole]).latency_ms.tolist()
    )


def test_warm_up_and_what_came_after_the_end_are_not_judged(scenario: Scenario) -> None:
    published = [(0, n, us(n), us(n)) for n in (-1, 1, 11)]  # the first and the last never arrive
    received = [(drone, 0, 1, us(1.02)) for drone in (0, 1)] + [(0, 0, -1, us(-0.9))] * 2
    ledger = read_ledger(scenario, START, [results(published=published, received=received)])
    assert (len(ledger), ledger.lost, ledger.repeated) == (2, 0, 0)


def test_a_subscriber_that_comes_and_goes_is_expected_only_well_inside(scenario: Scenario) -> None:
    published = [(0, n, us(n / 10), us(n / 10)) for n in range(100)]
    span = (1, "swarm.0", us(3.0), us(8.0))
    ledger = read_ledger(scenario, START, [results(published=published, received=[], subscribed=[span])])
    assert set(ledger.subscriber.tolist()) == {1}
    assert ledger.published.min() == pytest.approx(3.0 + GUARD)
    assert ledger.published.max() == pytest.approx(8.0 - GUARD - 0.1)
    assert ledger.lost == len(ledger)


def test_what_arrives_although_it_could_be_missed_counts(scenario: Scenario) -> None:
    span = (1, "swarm.0", us(0.5), us(8.0))  # the publication at 1 s is within the guard, and arrives
    ledger = read_ledger(scenario, START, [results(received=results().received[3:], subscribed=[span])])
    assert (len(ledger), ledger.lost) == (3, 0)


def test_publications_that_were_made_late_tell_of_a_busy_machine(scenario: Scenario) -> None:
    busy = results(published=[(0, n, us(n), us(n + 0.05)) for n in (1, 2, 3)])
    assert read_ledger(scenario, START, [busy]).lag_ms == pytest.approx(50.0)
    assert read_ledger(scenario, START, [results()]).lag_ms == 0.0


def test_nothing_happened(scenario: Scenario) -> None:
    ledger = read_ledger(scenario, START, [ClientResults()])
    assert (len(ledger), ledger.lost, ledger.repeated) == (0, 0, 0)
