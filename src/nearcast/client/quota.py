"""The limits of credentials, kept by the client itself: who is over gets an error, not a closed connection."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.identity.tokens import AccessLimits

__all__ = ["PublishQuota", "QuotaError"]

_HEADER_BYTES = 80  # of the stamp, about
_LARGE_MESSAGE = float((1 << 20) + _HEADER_BYTES)
_ROUNDING = 1e-6


class QuotaError(NearcastError):
    """A publication above the limits of the user or its tenant; nothing was sent. retry_after: seconds to wait."""

    def __init__(self, text: str, retry_after: float) -> None:
        again = f"try again in {retry_after:.3g} s" if retry_after < inf else "this one never fits"
        super().__init__(f"{text}; {again}")
        self.retry_after = retry_after


class PublishQuota:
    """What may be published now: a second's worth at once, or one large message. clock: gives monotonic seconds."""

    def __init__(self, user: str, limits: AccessLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._user, self._clock, self._at = user, clock, clock()
        self._rates = limits.messages_per_second, limits.bytes_per_second
        self._capacities = max(1.0, self._rates[0]), max(_LARGE_MESSAGE, self._rates[1])
        self._levels = list(self._capacities)
        self._reason, self._until = "", 0.0

    def suspend(self, reason: str, seconds: float) -> None:
        """The site says that nothing more is taken for a while."""
        self._reason, self._until = reason, self._clock() + seconds

    def refuse_if_suspended(self) -> None:
        """QuotaError while the site takes nothing."""
        if (left := self._until - self._clock()) > 0:
            raise QuotaError(self._reason, left)

    def take(self, size: int) -> None:
        """One more message of so many bytes; QuotaError if it is above a limit."""
        self.refuse_if_suspended()
        now = self._clock()
        passed, self._at = now - self._at, now
        amounts = 1.0, float(size + _HEADER_BYTES)
        for n, rate in enumerate(self._rates):
            self._levels[n] = min(self._capacities[n], self._levels[n] + rate * passed) if rate >= 0 else inf
        for n, (rate, unit) in enumerate(zip(self._rates, ("messages/s", "bytes/s"), strict=True)):
            if self._levels[n] < amounts[n] - _ROUNDING:
                possible = rate > 0 and amounts[n] <= self._capacities[n]
                wait = (amounts[n] - self._levels[n]) / rate if possible else inf
                raise QuotaError(f"{self._user} may publish {rate:g} {unit}", wait)
        self._levels = [level - amount for level, amount in zip(self._levels, amounts, strict=True)]
