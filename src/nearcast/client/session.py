"""A session: one connection of a client with all that belongs to it. Re-homing replaces it as a whole."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError

from nearcast.client.acknowledgements import Acknowledgements
from nearcast.client.channels import ChannelMember, HeldChannels
from nearcast.client.owner_process import OwnerProcess
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import Receiver
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.rpc import Server
from nearcast.nats.stamp import RESERVED_BYTES, new_incarnation
from nearcast.protocol.control import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nearcast.nats.identity.credentials import Credentials
    from nearcast.nats.rpc import Endpoint

__all__ = ["Session", "Sessions", "SharedSession"]

_log = logging.getLogger(__name__)
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_FAR_AHEAD_US = 1_000_000  # measurements differ by less: then stamps stay in order


class HomeClock:
    """The home's clock: this machine's until its offset was measured, then what was measured and the time that passed.

    So a jump of this machine's clock, as when it is set after a start without a battery, does not move what is sent.
    """

    def __init__(self) -> None:
        self._ahead_us: int | None = None  # of the steady clock
        self._stamped_us = 0

    def correct(self, offset_us: int) -> None:
        """The offset to this machine's clock was measured. Stamps made far ahead do not bind those to come."""
        self._ahead_us = time.time_ns() // 1000 + offset_us - _steady_us()
        if self.now_us() < self._stamped_us - _FAR_AHEAD_US:
            self._stamped_us = 0

    def now_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000 if self._ahead_us is None else _steady_us() + self._ahead_us

    def stamp_us(self) -> int:
        """For a publication: no two are the same."""
        ahead = self._ahead_us  # as in now_us: each publication comes by here
        us = time.time_ns() // 1000 if ahead is None else time.clock_gettime_ns(_STEADY) // 1000 + ahead
        if us <= self._stamped_us:
            us = self._stamped_us + 1
        self._stamped_us = us
        return us


def _steady_us() -> int:
    """Of a clock that nobody sets; where there is one, it also counts while the machine sleeps."""
    return time.clock_gettime_ns(_STEADY) // 1000


class Session:
    """A connection, the publications that wait for stores on it, and the channel subscriptions renewed through it.

    home: the site at the other end. largest_payload: bytes of data that its broker takes.
    """

    def __init__(
        self,
        name: str,
        source: str,
        connection: Connection,
        held: HeldChannels,
        clock: HomeClock,
        on_failure: Callable[[str, str], None],
    ) -> None:
        self._source, self.connection, self._clock = source, connection, clock
        self.acknowledgements = Acknowledgements(connection, on_failure)
        self.channels = ChannelMember(name, connection, held)
        self._server: Server | None = None
        self.adopt_connection()

    def adopt_connection(self) -> None:
        """Take over what the broker says of itself. After a reconnection it may be another one."""
        self.home = self.connection.server_name
        self.largest_payload = max(self.connection.max_payload - RESERVED_BYTES, 0)
        self._id_prefix = f"{self._source}:{self.home}:"

    def make_id(self, number: int | str) -> str:
        """The id of a publication that is the n-th to its topic. No two have the same microsecond.

        number: a text if it also says which ones were given up.
        """
        return f"{self._id_prefix}{self._clock.stamp_us()}:{number}"

    async def serve(self, endpoint: Endpoint) -> None:
        """Answer commands to this client for as long as the session lasts."""
        self._server = Server(self.connection, [endpoint])
        await self._server.start()

    async def stop(self) -> None:
        """End everything that belongs to the connection, which stays open."""
        await self.channels.close()
        if self._server is not None:
            await self._server.stop()
        await self.acknowledgements.stop()

    async def close(self) -> None:
        """End everything that belongs to the connection, and the connection."""
        await self.stop()
        await self.connection.close()


class Sessions:
    """The sessions of one client: the current one, and those that a move opens or drains.

    urls: where to connect, best first. reconnects: how often a lost connection came back. source: the client's name and
    the incarnation that this process drew. owner: the process that opened them.
    """

    def __init__(self, name: str, urls: Sequence[str], timeout: float, credentials: Credentials | None = None) -> None:
        self.name, self.urls, self._timeout = name, list(urls), timeout
        self._credentials = credentials
        self.reconnects = 0
        self.on_disconnect: list[Callable[[], None]] = []
        self.on_reconnect: list[Callable[[], None]] = []
        self.on_notice: Callable[[Notice], None] = lambda notice: None
        self.on_failure: Callable[[str, str], None] = lambda subject, message_id: None
        self.clock = HomeClock()
        self.source = f"{name}~{new_incarnation()}"
        self.owner = OwnerProcess(name)
        self._held: HeldChannels = {}
        self._current: Session | None = None
        self._others: set[Session] = set()

    @property
    def current(self) -> Session:
        """The session that publications leave by."""
        if self._current is None:
            raise NearcastError("the client is not connected; use it as: async with nearcast.connect(url) as client")
        self.owner.check()
        return self._current

    @property
    def home(self) -> str:
        """The site of the current session; nothing before there is one."""
        return self._current.home if self._current is not None else ""

    def connection(self) -> Connection:
        """The connection of the current session."""
        return self.current.connection

    async def start(self) -> None:
        """Open the first session."""
        self.owner = OwnerProcess(self.name)
        self.switch(await self.open(self.urls))

    async def open(self, urls: Sequence[str]) -> Session:
        """Another session, beside the current one."""
        opened: list[Session] = []

        async def reconnected() -> None:
            self.reconnects += 1
            session.adopt_connection()
            session.acknowledgements.reconnected()
            for callback in self.on_reconnect:
                callback()

        async def disconnected() -> None:
            if opened and not opened[0].connection.is_closed:
                opened[0].acknowledgements.disconnected()
                for callback in self.on_disconnect:
                    callback()

        connection = await open_connection(
            urls,
            name=self.name,
            timeout=self._timeout,
            on_disconnect=disconnected,
            on_reconnect=reconnected,
            credentials=self._credentials,
        )
        session = self._new_session(connection)
        opened.append(session)
        await session.acknowledgements.start()
        if self._credentials is not None:
            receiver = Receiver("notice", Notice, "json", lambda subject, reply, notice: self.on_notice(notice))
            await connection.subscribe_raw(subjects.client_notice(self.name), receiver)
        return session

    def _new_session(self, connection: Connection) -> Session:
        def failed(subject: str, message_id: str) -> None:
            self.on_failure(subject, message_id)

        session = Session(self.name, self.source, connection, self._held, self.clock, failed)
        self._others.add(session)
        return session

    def switch(self, session: Session) -> None:
        """Publish by this session from now on. The one before stays open until it is discarded."""
        self._others.remove(session)
        if self._current is not None:
            self._others.add(self._current)
        self._current = session

    async def discard(self, session: Session) -> None:
        """Close a session that is not the current one. When this is cancelled, `close` does it."""
        await session.close()
        self._others.discard(session)

    async def close(self) -> None:
        """Close all sessions, after sending what was published."""
        for session in list(self._others):
            await self.discard(session)
        if self._current is None:
            return
        connection = self._current.connection
        if connection.is_connected:
            try:
                await connection.flush(timeout=2)
            except (NatsError, TimeoutError) as error:
                _log.warning("client %s: closed before everything was sent: %s", self.name, error)
        await self._current.close()


class SharedSession(Sessions):
    """The one session of a client whose connection somebody else opened, uses and closes. It never moves."""

    def __init__(self, name: str, connection: Connection) -> None:
        super().__init__(name, [], 0.0)
        self._shared = connection

    async def open(self, urls: Sequence[str]) -> Session:
        """The session. What is under way when the connection is lost is sent again under its id, or fails in time."""
        session = self._new_session(self._shared)
        await session.acknowledgements.start()
        return session

    async def close(self) -> None:
        """End the session, not the connection."""
        if self._current is not None:
            await self._current.stop()
