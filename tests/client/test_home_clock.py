"""The clock that publications are stamped with: what is measured of the home's, whatever happens to this machine's."""

from __future__ import annotations

import pytest

from nearcast.client.session import HomeClock

HOUR = 3_600_000_000


class Machine:
    """A machine whose clock can be set. home_us: what the home's clock shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_us, self.set_by_us = 0, 0
        monkeypatch.setattr("nearcast.client.session.time.time_ns", lambda: (self.home_us + self.set_by_us) * 1000)
        monkeypatch.setattr("nearcast.client.session.time.clock_gettime_ns", lambda _: self.passed_us * 1000)

    @property
    def home_us(self) -> int:
        return 1_800_000_000_000_000 + self.passed_us

    def measure(self, clock: HomeClock) -> None:
        clock.correct(-self.set_by_us)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("jumps", [(HOUR,), (-HOUR,), (HOUR, -HOUR), (-HOUR, HOUR)])
def test_a_jump_of_the_clock_does_not_move_stamps(machine: Machine, jumps: tuple[int, ...]) -> None:
    """They were an hour ahead until the next measurement, or an hour or two behind, and expired at once."""
    clock = HomeClock()
    machine.measure(clock)
    for jump in jumps:
        machine.set_by_us = jump
        machine.passed_us += 10
        assert clock.stamp_us() == clock.now_us() == machine.home_us
        machine.measure(clock)
        machine.passed_us += 10
        assert clock.stamp_us() == clock.now_us() == machine.home_us


def test_before_the_first_measurement_it_is_the_machines_clock(machine: Machine) -> None:
    clock = HomeClock()
    machine.set_by_us = HOUR
    assert clock.stamp_us() == machine.home_us + HOUR
    machine.measure(clock)
    assert clock.stamp_us() == machine.home_us, "stamps that were far ahead do not bind"


def test_without_measurements_stamps_never_repeat(machine: Machine) -> None:
    clock = HomeClock()
    first = clock.stamp_us()
    machine.set_by_us = -HOUR
    assert [clock.stamp_us(), clock.stamp_us()] == [first + 1, first + 2]


def test_a_measurement_that_differs_a_little_keeps_the_order(machine: Machine) -> None:
    """A stamp was smaller than the one before it, and the history had the two in the wrong order."""
    clock = HomeClock()
    clock.correct(5_000)
    first = clock.stamp_us()
    machine.passed_us += 10
    clock.correct(0)
    assert clock.stamp_us() == first + 1
    machine.passed_us += 10_000
    assert clock.stamp_us() == machine.home_us
