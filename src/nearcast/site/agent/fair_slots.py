"""Slots for expensive requests, given to those who wait in turns: who sends many waits for its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator

from nearcast.errors import NearcastError

__all__ = ["FairSlots"]

_MOST_WAITING = 100  # requests of one caller


class FairSlots:
    """So many requests run at the same time."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def slot(self, caller: str) -> AsyncIterator[None]:
        """Wait for one. NearcastError when too many requests of this caller wait already."""
        await self._acquire(caller)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, caller: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        queue = self._waiting.setdefault(caller, deque())
        if len(queue) >= _MOST_WAITING:
            raise NearcastError(f"busy: {_MOST_WAITING} requests of {caller} wait already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was its turn just now
                self._release()
            raise

    def _release(self) -> None:
        """The next caller's first request, if one waits."""
        while self._waiting:
            caller, queue = next(iter(self._waiting.items()))
            turn = queue.popleft()
            self._waiting.move_to_end(caller)
            if not queue:
                del self._waiting[caller]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
