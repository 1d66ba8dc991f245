"""How long deliveries were above the bound after a change, on made-up ledgers."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.lab.scenarios.ledger import DeliveryLedger
from nearcast.lab.scenarios.recovery import recoveries, time_above
from nearcast.lab.scenarios.scenario import Scenario
from nearcast.lab.scenarios.swarms import SwarmParameters, swarms

TIMES = np.arange(0.0, 60.0, 0.05)  # 20 deliveries per second


def late_between(*spans: tuple[float, float]) -> np.ndarray:
    late = np.zeros(len(TIMES), dtype=bool)
    for start, end in spans:
        late |= (start <= TIMES) & (end > TIMES)
    return late


def test_it_is_the_time_until_deliveries_are_within_the_bound_for_a_second() -> None:
    seconds, recovered = time_above(TIMES, late_between((10.0, 13.0)), 10.0, 60.0)
    assert recovered
    # The window may begin a little earlier: a tenth of its deliveries (here two) may be late.
    assert 2.85 <= seconds <= 2.95


def test_a_change_that_breaks_nothing_takes_no_time() -> None:
    assert time_above(TIMES, late_between(), 10.0, 60.0) == (0.0, True)


def test_a_short_relief_is_no_recovery() -> None:
    seconds, recovered = time_above(TIMES, late_between((10.0, 13.0), (13.5, 16.0)), 10.0, 60.0)
    assert recovered
    assert 5.8 <= seconds <= 6.0


def test_single_late_messages_do_not_matter() -> None:
    assert time_above(TIMES, late_between((10.5, 10.55), (11.2, 11.25)), 10.0, 60.0) == (0.0, True)


def test_what_is_not_within_the_bound_before_the_next_change_has_not_recovered() -> None:
    assert time_above(TIMES, late_between((10.0, 30.0)), 10.0, 25.0) == (15.0, False)
    # A window must have passed before the next change.
    assert time_above(TIMES, late_between((10.0, 14.5)), 10.0, 15.0) == (5.0, False)


def test_a_time_without_deliveries_proves_nothing() -> None:
    times = TIMES[(TIMES < 10.0) | (TIMES >= 20.0)]
    seconds, recovered = time_above(times, np.zeros(len(times), dtype=bool), 10.0, 60.0)
    assert recovered
    assert seconds == pytest.approx(9.0, abs=0.02)  # the first window with a delivery ends just after it


def scenario_with_changes() -> Scenario:
    return swarms(SwarmParameters(seconds=60.0, swarms=2, drones=1, shortest_s=10.0, longest_s=20.0))


def ledger_of(scenario: Scenario, late: np.ndarray) -> DeliveryLedger:
    """Deliveries of both topics at the same times; those of topic 1 are in time."""
    zeros = np.zeros(2 * len(TIMES), dtype=np.int64)
    topic = np.tile([0, 1], len(TIMES))
    latency = np.where((topic == 0) & np.repeat(late, 2), 100.0, 20.0)
    return DeliveryLedger(topic, zeros, zeros, np.repeat(TIMES, 2), latency, 0, 0, 0.0)


def test_each_change_is_judged_by_its_own_topic_until_the_next_change_of_it() -> None:
    scenario = scenario_with_changes()
    own = [change for change in scenario.changes if change.subject == "swarm0"]
    assert len(own) >= 3
    late = late_between((own[0].at, own[0].at + 3.0), (own[1].at, own[2].at))
    found = recoveries(scenario, ledger_of(scenario, late))
    assert [recovery.change for recovery in found] == list(scenario.changes)
    swarm0 = [recovery for recovery in found if recovery.change.subject == "swarm0"]
    assert swarm0[0].recovered
    assert swarm0[0].seconds == pytest.approx(3.0, abs=0.2)
    assert not swarm0[1].recovered
    assert swarm0[1].seconds == pytest.approx(own[2].at - own[1].at)
    assert all(recovery.seconds == 0.0 for recovery in found if recovery.change.subject == "swarm1")
