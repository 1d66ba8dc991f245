"""Publications that wait for stores: each is done when enough distinct stores have acknowledged it.

A store answers a publication that carries a reply subject. One inbox takes the answers of all publications, one timer
watches over all of them; a publication without enough answers is sent again under the same id, which every store
keeps once. What was on its way when the connection was lost is sent again when it is back, before anything newer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.refusals import RefusedError
from nearcast.nats.stamp import header_block, late_block
from nearcast.nats.stream_publisher import decode_acknowledgement
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.connection import Connection

__all__ = ["Acknowledgements", "QuorumError", "QuorumPublication", "Receipt"]

_log = logging.getLogger(__name__)
_LOOK_EVERY = 0.05
_IN_FLIGHT = 4096
_SEND_AGAIN_AFTER = 1.0


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A publication went out; with a quorum, these stores had it when `publish` returned.

    synced: each of these stores writes through to its disk before it answers (`sync_always`). Otherwise a store has
    given it to its operating system: it survives the end of the store's process, and a power cut two minutes later.
    """

    id: str
    stores: tuple[str, ...] = ()
    synced: bool = False


class QuorumPublication(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A publication as it is sent, and kept in a spool. needed: how many stores must acknowledge it."""

    id: str
    topic: str
    subject: str
    needed: int
    payload: bytes


class QuorumError(NearcastError, TimeoutError):
    """Not enough stores acknowledged a publication in time. Those that did have it; a retry with its id is harmless.

    missing: the topic's other stores. refused: what stores said instead.
    """

    def __init__(
        self,
        publication: QuorumPublication,
        answered: tuple[str, ...],
        refused: list[str],
        missing: tuple[str, ...] = (),
    ) -> None:
        self.topic, self.id, self.needed = publication.topic, publication.id, publication.needed
        self.answered, self.refused, self.missing = answered, refused, missing
        who = ", ".join(answered) or "none"
        others = f"; missing: {', '.join(missing)}" if missing else ""
        why = f"; refused: {'; '.join(refused)}" if refused else ""
        super().__init__(
            f"topic {self.topic}: {len(answered)} of {self.needed} stores acknowledged in time ({who}){others}{why}"
        )


@dataclass(slots=True)
class _Waiting:
    publication: QuorumPublication
    deadline: float
    send_again_at: float
    future: asyncio.Future[Receipt]
    synced: frozenset[str]
    replicas: tuple[str, ...]
    answered: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def fail(self, *reasons: str) -> None:
        """Raise QuorumError to whoever waits."""
        if not self.future.done():
            missing = tuple(store for store in self.replicas if store not in self.answered)
            refused = [*self.refused, *reasons]
            self.future.set_exception(QuorumError(self.publication, self.answered, refused, missing))


class Acknowledgements:
    """All publications of one connection that wait for stores.

    on_failure: called with subject and id of one that had no quorum in time, or that nobody waits for any more.
    """

    def __init__(
        self, connection: Connection, on_failure: Callable[[str, str], None] = lambda subject, message_id: None
    ) -> None:
        self._connection, self._on_failure = connection, on_failure
        self._inbox = connection.new_inbox()
        self._prefix = len(self._inbox) + 1
        self._waiting: dict[str, _Waiting] = {}
        self._count = 0
        self._room = asyncio.Event()
        self._stopped = self._away = False
        self._timer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen for acknowledgements."""
        await self._connection.subscribe_raw(f"{self._inbox}.*", self._arrived)
        self._connection.refusals.on_publication.append(self._refused)
        self._timer = asyncio.create_task(self._watch(), name="acknowledgements")

    async def drain(self) -> None:
        """Wait for what is still under way; each has its own time limit."""
        while self._waiting:
            self._room.clear()
            await self._room.wait()

    def disconnected(self) -> None:
        """The connection is lost, and with it what it had taken. From now on publications wait."""
        self._away = True
        self._connection.forget_unsent(self._inbox)  # `reconnected` sends it, in order

    def reconnected(self) -> None:
        """Send all that waits, in order."""
        self._away = False
        now = asyncio.get_running_loop().time()
        with contextlib.suppress(ConnectionLostError):  # lost again: they wait on
            for token, entry in self._waiting.items():
                entry.send_again_at = now + _SEND_AGAIN_AFTER
                self._send(token, entry.publication, header_block(entry.publication.id.encode()))

    async def stop(self) -> None:
        """Give up what is still waiting."""
        self._stopped = True
        await cancel_and_wait(self._timer)
        for entry in self._waiting.values():
            entry.fail("the client was closed")
            if not entry.future.cancelled():
                entry.future.exception()  # nobody may be waiting any more
        self._waiting.clear()
        self._room.set()

    @property
    def full(self) -> bool:
        """Whether as many publications as allowed are in flight."""
        return len(self._waiting) >= _IN_FLIGHT

    async def wait_for_room(self) -> None:
        """Wait until fewer publications than allowed are in flight."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def send(
        self,
        publication: QuorumPublication,
        timeout: float,
        synced: frozenset[str] = frozenset(),
        replicas: tuple[str, ...] = (),
    ) -> asyncio.Future[Receipt]:
        """Send now, or when the connection is back; the future is for the acknowledgement.

        synced: stores that write through to their disks. replicas: the topic's stores, for the error.
        """
        if self._stopped:
            raise ConnectionLostError("the connection is closed")
        loop = asyncio.get_running_loop()
        now, future = loop.time(), loop.create_future()
        self._count += 1
        token = str(self._count)
        if not self._away:
            self._send(token, publication, header_block(publication.id.encode()))
        self._waiting[token] = _Waiting(publication, now + timeout, now + _SEND_AGAIN_AFTER, future, synced, replicas)
        if self._connection.backlogged:
            await self._connection.wait_writable()
        return future

    def _send(self, token: str, publication: QuorumPublication, headers: bytes) -> None:
        self._connection.send(publication.subject, headers, publication.payload, f"{self._inbox}.{token}")

    def _arrived(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        token = subject[self._prefix :]
        entry = self._waiting.get(token)
        if entry is None or not payload:  # answered already; or no store listens (yet)
            return
        ack = decode_acknowledgement(payload)
        if ack.error is not None:
            entry.refused += (f"{ack.domain or ack.stream or 'a store'}: {ack.error.description}",)
            return
        # Subscribers see where the answer is to go, and whoever writes it as its own reply has a store answer there.
        if ack.domain in entry.answered or not subjects.may_keep(ack.stream, entry.publication.subject):
            return
        entry.answered += (ack.domain,)
        if len(entry.answered) >= entry.publication.needed:
            del self._waiting[token]
            self._room.set()
            if not entry.future.done():
                synced = entry.synced.issuperset(entry.answered)
                entry.future.set_result(Receipt(entry.publication.id, entry.answered, synced))

    def _refused(self, subject: str) -> None:
        """The broker does not let this user publish to a subject (in small letters): nothing is gained by waiting."""
        user = self._connection.refusals.user
        for token, entry in list(self._waiting.items()):
            if entry.publication.subject.lower() == subject:
                self._end(token, RefusedError(f"topic {entry.publication.topic}: {user} may not publish it"))

    def _end(self, token: str, error: NearcastError | None = None) -> None:
        """It got no quorum in time, nobody waits for it any more, or this error."""
        entry = self._waiting.pop(token)
        self._room.set()
        if error is None:
            entry.fail()
        elif not entry.future.done():
            entry.future.set_exception(error)
        self._on_failure(entry.publication.subject, entry.publication.id)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                self._look(asyncio.get_running_loop().time())
            except Exception:
                _log.exception("publications are not sent again")

    def _look(self, now: float) -> None:
        """End those whose time is up, and send again those that no store answers."""
        for token, entry in list(self._waiting.items()):
            if entry.future.done() or now > entry.deadline:
                self._end(token)
            elif now > entry.send_again_at and self._connection.is_connected and not self._away:
                entry.send_again_at = now + _SEND_AGAIN_AFTER
                entry.refused = ()
                headers = late_block(entry.publication.id.encode(), 1)  # newer ones may have arrived before it
                try:
                    self._send(token, entry.publication, headers)
                except ConnectionLostError:
                    break
