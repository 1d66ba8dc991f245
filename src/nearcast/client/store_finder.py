"""Finds the stores that advertise a topic, the nearest first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from math import inf, nan
from types import NoneType
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import NoAnswerError, RemoteError, call
from nearcast.protocol.services import StoresAnswer, TopicsRequest

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["HistoryError", "StoreFinder", "rank_stores"]

_PING_TIMEOUT = 1.0
_ADVERTISED_WITHIN = 5.0
# Round trips this close are equal: the paper lets requests be shared among stores at the same distance.
_EQUAL_SECONDS, _EQUAL_SHARE = 0.0005, 0.2


class HistoryError(NearcastError, LookupError):
    """No store that advertises the topic answers."""


def rank_stores(round_trips: dict[str, float], choice: random.Random) -> list[str]:
    """Nearest first; stores at about the same distance as the nearest of their group in random order."""
    ranked: list[str] = []
    left = sorted(round_trips, key=lambda site: round_trips[site])
    while left:
        limit = round_trips[left[0]] * (1 + _EQUAL_SHARE) + _EQUAL_SECONDS
        group = [site for site in left if round_trips[site] <= limit]
        left = left[len(group) :]
        choice.shuffle(group)
        ranked.extend(group)
    return ranked


class StoreFinder:
    """Finds the stores that hold a topic, by the advertisements the home has heard and by measured round trips."""

    def __init__(self, current: Callable[[], Connection], choice: random.Random) -> None:
        self._current, self._choice = current, choice

    async def find(self, topic: str) -> list[str]:
        """The stores that advertise a topic and answer, nearest first; those that lack something last."""
        answer = await self._ask_home(topic)
        clock = asyncio.get_running_loop().time
        deadline = clock() + _ADVERTISED_WITHIN
        while not answer.stores and answer.configured and clock() < deadline:
            await asyncio.sleep(0.1)  # sites that have just come up tell each other in the background
            answer = await self._ask_home(topic)
        if not answer.stores:
            hint = "its stores are down" if answer.configured else "give the topic `replicas` in the configuration"
            raise HistoryError(f"topic {topic}: no store advertises it; {hint}")
        near: dict[str, float] = {}
        silent = True
        while not near and silent:  # all may be too busy for a ping
            trips = await asyncio.gather(*(self._round_trip(site) for site in answer.stores))
            near = {site: trip for site, trip in zip(answer.stores, trips, strict=True) if trip < inf}
            silent = inf in trips and clock() < deadline
        return sorted(rank_stores(near, self._choice), key=lambda site: site in answer.behind)

    async def _ask_home(self, topic: str) -> StoresAnswer:
        connection = self._current()
        home = connection.server_name
        try:
            subject = subjects.history(home, "find")
            return await call(connection, subject, TopicsRequest(topic), StoresAnswer, timeout=2.0)
        except (NoAnswerError, RemoteError) as error:
            raise HistoryError(f"topic {topic}: the agent of site {home or '(unknown)'} does not answer") from error

    async def _round_trip(self, site: str) -> float:
        """The shorter of two, so that one stray delay does not decide; infinite if it is silent, nan if it fails."""
        clock = asyncio.get_running_loop().time
        best = inf
        for _ in range(2):
            start = clock()
            try:
                await call(self._current(), subjects.history(site, "ping"), None, NoneType, timeout=_PING_TIMEOUT)
            except (NoAnswerError, RemoteError) as error:
                silent = isinstance(error, NoAnswerError) and not error.nobody_listens
                return best if best < inf or silent else nan
            best = min(best, clock() - start)
        return best
