"""Carries out what the re-homing machine decides: opens, subscribes, switches, drains and closes sessions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import NoneType
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from nearcast.client.coordination import rehoming as rh
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import interest_settle
from nearcast.nats.rpc import Endpoint, NoAnswerError, StaleTermError, call
from nearcast.nats.tasks import TaskSet
from nearcast.protocol.control import Rehome, TermClaim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nearcast.client.session import Session, Sessions
    from nearcast.client.subscription import Subscription
    from nearcast.nats.connection import Connection

__all__ = ["RehomingExecutor"]

_log = logging.getLogger(__name__)
_DRAIN_LIMIT = 30.0
_CLAIM_LIMIT, _ASKED_SITES = 5.0, 3


class RehomingExecutor:
    """Moves one client between sites. moves: how many were made. on_moved: called with the
    old home once publications leave by the new session. subscriptions: those that are open. near_sites: names them."""

    def __init__(
        self, sessions: Sessions, subscriptions: set[Subscription], near_sites: Callable[[], Iterable[str]]
    ) -> None:
        self._sessions, self._subscriptions, self._near_sites = sessions, subscriptions, near_sites
        self._machine = rh.Rehoming("")
        self._tasks = TaskSet()
        self._stopped = False
        self.moves = 0
        self.on_moved: Callable[[str], None] = lambda old_home: None

    @property
    def moving(self) -> bool:
        """Whether a move is under way: its old session may still be open."""
        return bool(self._tasks)

    @property
    def home(self) -> str:
        """Where the client is, as far as its moves are concerned."""
        return self._machine.home

    def adopt_home(self, home: str) -> None:
        """The client is at another site by other means than a move."""
        self._machine.home = home

    async def listen(self, session: Session) -> None:
        """Take commands of the coordinator."""
        subject = subjects.client_command(self._sessions.name)
        await session.serve(Endpoint("rehome", subject, Rehome, self.rehome))

    async def stop(self) -> None:
        """Give up a move that is under way; its sessions are left to their owner."""
        self._stopped = True
        await self._tasks.cancel()

    async def rehome(self, command: Rehome) -> None:
        """Move; returns as soon as publications leave by the new session. The old one is drained afterwards."""
        if self._stopped:
            raise NearcastError(f"client {self._sessions.name} is closing")
        if command.term != self._machine.term:
            await self._require_term(command.term)
        outcome: asyncio.Future[rh.MoveOutcome] = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._move(command, outcome), f"move to {command.home}")
        known = await outcome
        if known.term > command.term:
            raise StaleTermError(known.error, known.term)
        if known.error:
            raise NearcastError(known.error)

    async def _require_term(self, term: int) -> None:
        """A term in a command is a claim. The sites read the lease, which settles it: ask the home, else another."""
        home = self._sessions.home
        sites = [home, *(site for site in self._near_sites() if site != home)][:_ASKED_SITES]
        for site in sites:
            try:
                connection = self._sessions.connection()
                await call(connection, subjects.term_claim(site), TermClaim(term), NoneType, timeout=_CLAIM_LIMIT)
                return
            except NoAnswerError as error:
                _log.debug("client %s: %s", self._sessions.name, error)
        raise NearcastError(f"no site of {', '.join(sites)} could say whether term {term} leads; not moved")

    async def _move(self, event: rh.Event, known: asyncio.Future[rh.MoveOutcome]) -> None:
        """Do what the machine says until it says nothing more."""
        old = new = self._sessions.current
        events = [event]
        while events:
            for instruction in self._machine.handle(events.pop(0)):
                match instruction:
                    case rh.MoveOutcome():
                        if not known.done():
                            known.set_result(instruction)
                    case rh.Open(url):
                        opened = await self._open(url)
                        if isinstance(opened, rh.Lost):
                            events.append(opened)
                        else:
                            new = opened
                            events.append(rh.Reached.OPENED)
                    case rh.Step.RESUBSCRIBE:
                        events.append(await self._subscribe(old, new))
                    case rh.Step.SWITCH:
                        await self._switch(old, new)
                    case rh.Step.WAIT:
                        await asyncio.sleep(interest_settle(await _round_trip(old.connection)))
                        events.append(rh.Reached.SETTLED)
                    case rh.Step.CLOSE_NEW:
                        await self._sessions.discard(new)
                    case rh.Step.CLOSE_OLD:
                        await self._drain(old)
                        await self._sessions.discard(old)

    async def _open(self, url: str) -> Session | rh.Lost:
        try:
            session = await self._sessions.open([url, *self._sessions.urls])
        except Exception as error:  # whatever it is, the machine must hear of it, or the client never moves again
            return rh.Lost(str(error) or type(error).__name__)
        if session.home != self._machine.target:
            await self._sessions.discard(session)
            return rh.Lost("does not answer")
        return session

    async def _subscribe(self, old: Session, new: Session) -> rh.Event:
        try:
            for subscription in list(self._subscriptions):
                await subscription.attach_also(old.connection, new.connection)
            await self.listen(new)
            await new.connection.flush(timeout=10)
        except Exception as error:
            return rh.Lost(str(error) or type(error).__name__)
        return rh.Reached.RESUBSCRIBED

    async def _switch(self, old: Session, new: Session) -> None:
        """From here on publications leave by the new session; what waits for stores is still answered on the old."""
        with contextlib.suppress(NatsError, TimeoutError):
            await old.connection.flush(timeout=2)  # in order: the old broker has all before the new one gets the next
        self._sessions.switch(new)
        await old.channels.close()
        with contextlib.suppress(NearcastError):  # renewed in a while
            await new.channels.take_over()
        self.moves += 1
        self.on_moved(old.home)

    async def _drain(self, old: Session) -> None:
        """Wait for what is still under way on the old session, and take messages from the new one alone."""
        try:
            async with asyncio.timeout(_DRAIN_LIMIT):
                await old.acknowledgements.drain()
                for subscription in list(self._subscriptions):
                    await subscription.replay_done()
                await self._attach_late(old.connection, self._sessions.connection())
                for subscription in list(self._subscriptions):
                    await subscription.detach(old.connection)
                await old.connection.flush(timeout=2)
        except Exception as error:  # the old session is closed all the same
            why = str(error) or type(error).__name__
            _log.warning("client %s: old connection closed before it was drained: %s", self._sessions.name, why)

    async def _attach_late(self, old: Connection, new: Connection) -> None:
        """Subscriptions that began on the old connection during the move."""
        late = [subscription for subscription in self._subscriptions if subscription.attached_only_to(old, new)]
        for subscription in late:
            await subscription.attach_also(old, new)
        if late:
            await new.flush(timeout=10)
            await asyncio.sleep(interest_settle())


async def _round_trip(connection: Connection) -> float:
    try:
        return float(await connection.rtt())
    except (NatsError, TimeoutError, AttributeError):
        return 0.0
