"""Failed logins are limited by address."""

from __future__ import annotations

import pytest

from nearcast.web.login_limits import LoginLimits, TooManyLoginsError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_ten_failed_logins_a_minute_of_one_address() -> None:
    clock = Clock()
    limits = LoginLimits(clock)
    for _ in range(10):
        limits.begin("10.0.0.1")
        clock.now += 1
    with pytest.raises(TooManyLoginsError, match="try again in 50 s") as refused:
        limits.begin("10.0.0.1")
    assert refused.value.retry_after == 50
    limits.begin("10.0.0.2")
    clock.now += 50
    limits.begin("10.0.0.1")  # what was refused did not count


def test_logins_that_succeed_do_not_count() -> None:
    limits = LoginLimits(Clock())
    for _ in range(100):
        limits.begin("10.0.0.1")
        limits.succeed("10.0.0.1")
