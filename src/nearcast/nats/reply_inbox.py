"""One inbox of a connection for the answers to many requests: a subscription for each would outlast its request."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

__all__ = ["ReplyInbox"]


class ReplyInbox:
    """Answers are told apart by a token behind the inbox. It is subscribed to when it is used for the first time.

    new_inbox, subscribe: of its connection.
    """

    def __init__(
        self,
        new_inbox: Callable[[], str],
        subscribe: Callable[[str, Callable[[str, str, bytes, bytes], None]], Awaitable[object]],
    ) -> None:
        self._new_inbox, self._subscribe, self._inbox = new_inbox, subscribe, ""
        self._takers: dict[str, Callable[[bytes, bytes], object]] = {}
        self._requests = 0

    @contextlib.asynccontextmanager
    async def expect(self, take: Callable[[bytes, bytes], object]) -> AsyncIterator[str]:
        """The reply of a request; while this lasts, `take` is called with payload and header block of each answer."""
        if not self._inbox:
            self._inbox = self._new_inbox()
            await self._subscribe(f"{self._inbox}.*", self._arrived)
        self._requests += 1
        token = str(self._requests)
        self._takers[token] = take
        try:
            yield f"{self._inbox}.{token}"
        finally:
            del self._takers[token]

    def _arrived(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        take = self._takers.get(subject.rpartition(".")[2])
        if take is not None:
            take(payload, headers)
