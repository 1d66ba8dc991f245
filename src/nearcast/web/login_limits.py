"""How often somebody may try to log in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nearcast.errors import NearcastError

__all__ = ["LoginLimits", "TooManyLoginsError"]

_PERIOD = 60.0
_PER_ADDRESS = 10


class TooManyLoginsError(NearcastError):
    """Too many logins failed. retry_after: seconds until the next one is looked at."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many logins failed; try again in {retry_after} s")
        self.retry_after = retry_after


class LoginLimits:
    """Logins that were begun and did not succeed, of the last minute. clock: seconds, never set back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun: deque[tuple[float, str]] = deque()

    def begin(self, address: str) -> None:
        """Count one of an address, or refuse it; what is refused is not counted."""
        now = self._clock()
        while self._begun and self._begun[0][0] <= now - _PERIOD:
            self._begun.popleft()
        own = [when for when, other in self._begun if other == address]
        if len(own) >= _PER_ADDRESS:
            raise TooManyLoginsError(max(1, round(own[0] + _PERIOD - now)))
        self._begun.append((now, address))

    def succeed(self, address: str) -> None:
        """Forget the last one of an address."""
        for n in range(len(self._begun) - 1, -1, -1):
            if self._begun[n][1] == address:
                del self._begun[n]
                return
