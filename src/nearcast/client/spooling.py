"""Publishing through a spool: durable publications are kept in a file until their stores have them.

While stores answer, a publication is written to the file and sent at once. When one stays without its quorum, or the
connection is away, those after it only go into the file; the file is then sent from its oldest on, some at a time,
until nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nearcast.client.acknowledgements import QuorumError, QuorumPublication, Receipt
from nearcast.errors import NearcastError
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from nearcast.client.publication_spool import PublicationSpool
    from nearcast.client.session import Sessions

__all__ = ["SpooledPublisher"]

_log = logging.getLogger(__name__)
_ATTEMPT_SECONDS = 5.0
_SENT_TOGETHER = 200
_WINDOW_SECONDS = 0.1  # with the above: at most 2,000 a second beside what else the link carries
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_SYNC_SECONDS = 0.5


class SpooledPublisher:
    """Sends by the current session of a client what its spool keeps."""

    def __init__(self, sessions: Sessions, spool: PublicationSpool) -> None:
        self._sessions, self._spool = sessions, spool
        self._receipts: dict[str, asyncio.Future[Receipt]] = {}
        self._in_flight: set[str] = set()
        self._backlog = len(spool) > 0  # of an earlier process
        self._wake, self._answered = asyncio.Event(), asyncio.Event()  # all that is in flight was answered
        self._dirty = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def waiting(self) -> int:
        """Publications without a receipt."""
        return len(self._spool)

    def start(self) -> None:
        """Send what an earlier process left."""
        self._tasks = [
            asyncio.create_task(self._drain(), name="spool"),
            asyncio.create_task(self._sync(), name="spool to disk"),
        ]
        self._wake.set()

    async def stop(self) -> None:
        """What waits stays in the file."""
        await cancel_and_wait(*self._tasks)
        for future in self._receipts.values():
            if not future.done():
                future.set_exception(ConnectionLostError("the client was closed; the publication is in its spool"))
                future.exception()  # nobody may be waiting any more
        self._spool.close()

    async def publish(self, publication: QuorumPublication, synced: frozenset[str]) -> asyncio.Future[Receipt]:
        """Keep it, and send it now if nothing older waits. The future is for the receipt, however long it takes."""
        self._spool.append(publication)
        self._dirty = True
        receipt = self._receipts[publication.id] = asyncio.get_running_loop().create_future()
        if self._backlog or not self._sessions.connection().is_connected:
            self._backlog = True
            self._wake.set()
        else:
            await self._send(publication, synced)
        return receipt

    async def _send(self, publication: QuorumPublication, synced: frozenset[str] = frozenset()) -> None:
        message_id = publication.id
        self._in_flight.add(message_id)
        try:
            acknowledged = await self._sessions.current.acknowledgements.send(publication, _ATTEMPT_SECONDS, synced)
        except ConnectionLostError:
            self._failed(message_id)
            return
        acknowledged.add_done_callback(lambda future: self._outcome(message_id, future))

    def _outcome(self, message_id: str, acknowledged: asyncio.Future[Receipt]) -> None:
        if acknowledged.cancelled() or isinstance(acknowledged.exception(), QuorumError):
            self._failed(message_id)
            return
        self._landed(message_id)
        waiter = self._receipts.pop(message_id, None)
        if (error := acknowledged.exception()) is not None:
            _log.error("spool: %s; it is removed", error)
        if waiter is not None and not waiter.done():
            waiter.set_result(acknowledged.result()) if error is None else waiter.set_exception(error)
        self._wake.set()
        self._dirty = True
        try:
            self._spool.done(message_id)
        except (OSError, NearcastError) as error:  # it is sent again by the next process; stores keep it once
            _log.error("spool: the receipt of %s is not written: %s", message_id, error)

    def _landed(self, message_id: str) -> None:
        self._in_flight.discard(message_id)
        if not self._in_flight:
            self._answered.set()

    def _failed(self, message_id: str) -> None:
        self._landed(message_id)
        self._backlog = True
        self._wake.set()

    async def _drain(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._backlog:
                try:
                    complete = await self._send_window()
                except (NearcastError, OSError) as error:
                    _log.warning("spool: %s", error)
                    complete = False
                except Exception:
                    _log.exception("spool: publications are not sent; trying again")
                    complete = False
                pause = _FIRST_PAUSE if complete else min(2 * pause, _LONGEST_PAUSE)
                await asyncio.sleep(_WINDOW_SECONDS if complete else pause)

    async def _send_window(self) -> bool:
        """Send the oldest ones that wait, and wait for their stores; whether all of them answered."""
        await self._nothing_in_flight()  # older ones first
        if not self._sessions.connection().is_connected:
            return False
        oldest = self._spool.waiting[:_SENT_TOGETHER]
        for message_id in oldest:
            await self._send(self._spool.read(message_id))
        await self._nothing_in_flight()
        left = len(self._spool)
        if not left:
            self._backlog = False
            _log.info("spool: all publications have reached their stores")
        return not left or self._spool.waiting[0] not in oldest

    async def _nothing_in_flight(self) -> None:
        while self._in_flight:
            self._answered.clear()
            await self._answered.wait()

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_SECONDS)
            if self._dirty:
                self._dirty = False
                try:
                    await asyncio.to_thread(self._spool.sync)
                except OSError as error:
                    self._dirty = True
                    _log.error("spool: not written to the disk, trying again: %s", error)
