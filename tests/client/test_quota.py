"""What a client may publish by its credentials."""

from __future__ import annotations

import pytest

from nearcast.client.quota import PublishQuota, QuotaError
from nearcast.nats.identity.tokens import AccessLimits


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_second_of_messages_at_once_then_at_the_rate() -> None:
    clock = Clock()
    quota = PublishQuota("car7", AccessLimits(messages_per_second=10), clock)
    for _ in range(10):
        quota.take(100)
    with pytest.raises(QuotaError, match=r"car7 may publish 10 messages/s; try again in 0\.1 s") as refused:
        quota.take(100)
    clock.now += refused.value.retry_after
    quota.take(100)
    with pytest.raises(QuotaError):
        quota.take(100)


def test_a_refused_message_takes_nothing_from_the_other_limit() -> None:
    clock = Clock()
    quota = PublishQuota("car7", AccessLimits(messages_per_second=10, bytes_per_second=1000), clock)
    quota.take(1 << 20)  # one large message, then it waits
    for _ in range(50):
        with pytest.raises(QuotaError, match=r"1000 bytes/s; try again in"):
            quota.take(2000)
    with pytest.raises(QuotaError, match=r"1000 bytes/s; this one never fits"):
        quota.take(2 << 20)
    clock.now += 5
    for _ in range(9):
        quota.take(100)


def test_what_the_site_says_holds_until_its_time_is_over() -> None:
    clock = Clock()
    quota = PublishQuota("car7", AccessLimits(), clock)
    quota.suspend("site edge: car7 sent more than 10 messages/s", 10)
    with pytest.raises(QuotaError, match=r"site edge: car7 sent more than 10 messages/s; try again in 10 s"):
        quota.take(1)
    clock.now += 10
    quota.take(1)
