"""What a client measures of the network around it: the way to its home, round trips to near sites, its clock.

All figures here are round trips in milliseconds, measured, never estimated. Half of one is a way.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

from nearcast.coordinates.probe import connect_ms
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import call
from nearcast.protocol.registration import SiteCoordinate, SiteCoordinates

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["HomePing", "Neighbourhood", "is_usual"]

_SITES = 8  # a bounded set, whatever the number of sites
_FILTER = 3  # round trips per site of which the shortest counts: what delays a packet only ever adds
_BASELINE = 5  # pings that say what is usual
_CHANGE_MS, _CHANGE_SHARE = 5.0, 0.3  # a ping that differs by more than the larger of the two is out of the ordinary
_CLOCK_NOISE_US = 1000


class HomePing:
    """Decides from pings whether the way to the home has changed. Round trips in, a verdict out; no clock, no I/O."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_BASELINE)

    def suspicious(self, ping_ms: float) -> bool:
        """Whether a ping is out of the ordinary; an ordinary one is remembered."""
        if self._usual and self._deviation(ping_ms):
            return True
        self._usual.append(ping_ms)
        return False

    def confirmed(self, pings_ms: list[float]) -> bool:
        """Whether these pings, a suspicious one and some right after it, agree that the way has changed.

        One that is usual after all was a delay of the moment: a lost packet, a busy process.
        """
        signs = {self._deviation(ping) for ping in pings_ms}
        if 0 in signs or len(signs) > 1:
            return False
        self._usual = deque(pings_ms, maxlen=_BASELINE)
        return True

    def reset(self) -> None:
        """Another home: what was usual is not any more."""
        self._usual.clear()

    def _deviation(self, ping_ms: float) -> int:
        """1 when it is longer than usual, -1 when it is shorter, 0 when it is neither."""
        usual = statistics.median(self._usual)
        if is_usual(ping_ms, usual):
            return 0
        return 1 if ping_ms > usual else -1


def is_usual(measured_ms: float, usual_ms: float) -> bool:
    """Whether a round trip is what it was before, but for noise."""
    return abs(measured_ms - usual_ms) <= max(_CHANGE_MS, _CHANGE_SHARE * usual_ms)


class Neighbourhood:
    """Round trips to the nearest sites that the home knows.

    clock_offset_us: what to add to this machine's clock to have the home's; 0 while the difference is within the
    uncertainty.
    """

    def __init__(self) -> None:
        self._samples: dict[str, deque[float]] = {}
        self.clock_offset_us = 0

    @property
    def round_trips(self) -> dict[str, float]:
        """By site, filtered."""
        return {site: min(samples) for site, samples in self._samples.items()}

    def reset(self) -> None:
        """The client has moved: what was measured before says nothing any more."""
        self._samples.clear()

    async def measure(self, connection: Connection, rounds: int = 1) -> list[tuple[SiteCoordinate, float]]:
        """Measure the round trips to the sites that the home names; those that answered in the last round."""
        asked, began = time.time_ns() // 1000, time.perf_counter()
        try:
            subject = subjects.site_coordinates(connection.server_name)
            answer = await call(connection, subject, None, SiteCoordinates, timeout=2)
        except NearcastError:
            return []
        self._note_clock(answer.now_us, asked, 1e6 * (time.perf_counter() - began))
        places = answer.sites[:_SITES]
        reached: list[tuple[SiteCoordinate, float]] = []
        for _ in range(rounds):
            taken = await asyncio.gather(*(_round_trip(place) for place in places))
            reached = [(place, ms) for place, ms in zip(places, taken, strict=True) if ms is not None]
            for place, ms in reached:
                self._samples.setdefault(place.site, deque(maxlen=_FILTER)).append(ms)
        for gone in self._samples.keys() - {place.site for place, _ in reached}:
            del self._samples[gone]
        return reached

    def _note_clock(self, home_us: int, asked_us: int, round_trip_us: float) -> None:
        """Cristian's algorithm: the home's clock was read half a round trip after the request left."""
        offset = home_us - (asked_us + round_trip_us / 2)
        self.clock_offset_us = int(offset) if abs(offset) > round_trip_us / 2 + _CLOCK_NOISE_US else 0


async def _round_trip(place: SiteCoordinate) -> float | None:
    try:
        return await connect_ms(place.host, place.port, limit=2)
    except (OSError, TimeoutError):
        return None
