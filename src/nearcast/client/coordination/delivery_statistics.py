"""What a client reports of a subscription: its traffic since the last report, and sampled latencies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nearcast.domain.latency_histogram import bucket
from nearcast.nats.stamp import parse_stamp, stamp_of
from nearcast.protocol.reports import ClientTopic, channel_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.client.subscription import Subscription

__all__ = ["DeliveryStatistics"]

_SAMPLES_A_SECOND = 100


class DeliveryStatistics:
    """What a subscription received since the last report; sizes and latencies of a bounded number of messages a second.

    clock: microseconds since 1970 by the home's clock.
    """

    def __init__(self, subscription: Subscription, clock: Callable[[], int]) -> None:
        self._subscription, self._clock = subscription, clock
        self._reported = self._samples = self._bytes = 0
        self._latency: Counter[int] = Counter()
        self.renew_budget()

    def renew_budget(self) -> None:
        """Sample some more messages; called about once a second, so that what sampling costs does not grow."""
        self._budget = _SAMPLES_A_SECOND
        self._subscription.sampler = self._sample

    def reset(self) -> None:
        """The client has moved: latencies from before say nothing about what is."""
        self._latency.clear()

    def take(self) -> ClientTopic:
        """The figures since the last call."""
        subscription = self._subscription
        received = subscription.received - self._reported
        taken = ClientTopic(
            channel_row(subscription.topic) if subscription.of_channel else subscription.topic,
            subscribes=True,
            messages_in=received,
            bytes_in=received * self._bytes // self._samples if self._samples else 0,
            latency=dict(self._latency),
        )
        self._reported, self._samples, self._bytes = subscription.received, 0, 0
        self._latency.clear()
        return taken

    def _sample(self, payload: bytes, headers: bytes) -> None:
        self._samples += 1
        self._bytes += len(payload)
        self._budget -= 1
        if not self._budget:
            self._subscription.sampler = None
        published_us = parse_stamp(stamp_of(headers)).published_us
        if published_us:
            self._latency[bucket((self._clock() - published_us) / 1000)] += 1
