"""Login sessions: a user signs the broker's challenge, and the session is the connection that the broker then accepts.

The broker checks token and signature, and closes the connection of a user that expires or is revoked; that ends the
session. Nothing here decides whom to trust.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.domain.names import check_name
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import Connection, ConnectionLostError, open_connection
from nearcast.nats.identity.remote_key import RemoteKeyCredentials
from nearcast.nats.identity.tokens import read_token, tagged_role
from nearcast.nats.tasks import TaskSet, cancel_and_wait
from nearcast.web.login_limits import LoginLimits
from nearcast.web.users import ConsoleUser

if TYPE_CHECKING:
    from nearcast.nats.identity.credentials import Credentials
    from nearcast.nats.identity.tokens import Claims

__all__ = ["LoginError", "LoginSession", "LoginSessions"]

_log = logging.getLogger(__name__)
_ROLES = ("operator", "reader")
_SIGN_LIMIT = 10.0
_LIFETIME = 12 * 3600.0
_MOST_CHALLENGES, _MOST_SESSIONS, _MOST_OF_A_USER = 50, 500, 20


class LoginError(NearcastError, PermissionError):
    """Nobody is logged in, or a login failed."""


@dataclass(frozen=True, eq=False)
class LoginSession:
    """secret: what a browser or program shows to be this session. ends: at the latest, by the clock of the sessions.

    over: set when it has ended.
    """

    secret: str
    user: ConsoleUser
    ends: float
    address: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, eq=False)
class _Challenge:
    credentials: RemoteKeyCredentials
    opening: asyncio.Task[Connection]
    address: str
    over: asyncio.Event


class LoginSessions:
    """Of the users that one broker knows, of the tenant of these credentials, in the roles operator and reader.

    link: a secret that lets in whoever shows it as the user of these credentials; none without it.
    """

    def __init__(self, url: str, own: Credentials, clock: Callable[[], float] = time.monotonic, link: str = "") -> None:
        self._url, self._own, self._clock, self._link = url, own, clock, link
        self._account = own.claims.nats.get("issuer_account")
        self._limits = LoginLimits(clock)
        self._challenges: dict[str, _Challenge] = {}
        self._sessions: dict[str, LoginSession] = {}
        self._closing = TaskSet()

    async def challenge(self, token: str, address: str) -> tuple[str, str]:
        """Begin the login of the user with this token: an id, and what its key is to sign within ten seconds."""
        self._limits.begin(address)
        self._check(token)
        if len(self._challenges) >= _MOST_CHALLENGES:
            raise NearcastError(f"{_MOST_CHALLENGES} logins are under way; try again in some seconds")
        credentials, over = RemoteKeyCredentials.of_token(token, self._own.ca), asyncio.Event()
        opening = asyncio.create_task(self._connect(credentials, over), name="login")
        identity = secrets.token_urlsafe(16)
        self._challenges[identity] = _Challenge(credentials, opening, address, over)
        opening.add_done_callback(lambda _: self._forget(identity))
        try:
            await asyncio.wait((opening, credentials.challenge), return_when=asyncio.FIRST_COMPLETED)
            if not credentials.challenge.done():
                await opening
        except (InputError, ConnectionLostError) as error:
            raise LoginError(str(error)) from None
        except asyncio.CancelledError:
            await cancel_and_wait(opening)
            raise
        return identity, credentials.challenge.result()

    async def login(self, identity: str, signature: str) -> LoginSession:
        """End a login: the session, or a LoginError."""
        begun = self._challenges.pop(identity, None)
        if begun is None:
            raise LoginError(f"there is no such challenge; it is to be signed within {_SIGN_LIMIT:g} s, once")
        try:
            begun.credentials.sign(signature)
            connection = await begun.opening
        except InputError as error:
            await cancel_and_wait(begun.opening)
            raise LoginError(str(error)) from None
        except ConnectionLostError as error:
            raise LoginError(str(error)) from None
        except asyncio.CancelledError:
            await cancel_and_wait(begun.opening)
            if not begun.opening.cancelled() and begun.opening.exception() is None:
                await begun.opening.result().close()
            raise
        self._limits.succeed(begun.address)
        return self._open(begun.credentials.claims, connection, begun.address, begun.over)

    async def login_by_link(self, secret: str, address: str) -> LoginSession:
        """The session of the console's own user, for whoever shows the secret of its link; or a LoginError."""
        self._limits.begin(address)
        shown, own = secret.encode(errors="replace"), self._link.encode()
        if not own or not secrets.compare_digest(shown, own):
            raise LoginError("this is not the link of this console, which makes a new one whenever it is started")
        over = asyncio.Event()
        connection = await self._connect(self._own, over)
        self._limits.succeed(address)
        return self._open(self._own.claims, connection, address, over)

    def find(self, secret: str) -> LoginSession | None:
        """The session that somebody shows, if it has not ended."""
        session = self._sessions.get(secret)
        if session is not None and (session.over.is_set() or session.ends <= self._clock()):
            self.end(session)
            return None
        return session

    def open(self) -> list[LoginSession]:
        """All that have not ended."""
        return [session for secret in list(self._sessions) if (session := self.find(secret)) is not None]

    def end(self, session: LoginSession) -> None:
        """Log out."""
        session.over.set()
        if self._sessions.pop(session.secret, None) is not None:
            self._closing.spawn(session.user.close(), name="logout")

    async def run(self) -> None:
        """End sessions in time, also those that only listen, until cancelled; then all."""
        try:
            while True:
                self.open()
                await asyncio.sleep(1.0)
        finally:
            await cancel_and_wait(*(begun.opening for begun in self._challenges.values()))
            for session in list(self._sessions.values()):
                session.over.set()
                await session.user.close()
            await self._closing.cancel()

    async def _connect(self, credentials: Credentials, over: asyncio.Event) -> Connection:
        """over: set when the broker closes the connection."""

        async def lost() -> None:
            over.set()

        return await open_connection(
            [self._url], name="nearcast-web-user", timeout=_SIGN_LIMIT, credentials=credentials, on_disconnect=lost
        )

    def _check(self, token: str) -> None:
        """What can be refused without asking the broker, which does not know what the console is for."""
        claims = read_token(token)
        try:
            name, role = check_name(claims.name, "user"), tagged_role(claims.nats.get("tags", []))
            topics = claims.nats.get("sub", {}).get("allow", [])
            if role not in _ROLES:
                raise LoginError(f"{name} has role {role or 'none'}; allowed: {' and '.join(_ROLES)}")
            if claims.nats.get("issuer_account") != self._account:
                raise LoginError(f"{name} is of another tenant or deployment than this console")
            if subjects.publications(">") not in topics:
                raise LoginError(f"{name} was given some topics only; the console shows all")
        except (TypeError, AttributeError):  # it has what no token of ours has
            raise LoginError("not a token of `nearcast auth add`") from None

    def _forget(self, identity: str) -> None:
        """A challenge is over: signed, or not in time."""
        begun = self._challenges.pop(identity, None)
        if begun is not None and not begun.opening.cancelled():
            begun.opening.exception()  # retrieved: nobody waits for it any more

    def _open(self, claims: Claims, connection: Connection, address: str, over: asyncio.Event) -> LoginSession:
        user = ConsoleUser(claims.name, tagged_role(claims.nats["tags"]), connection, logged_in=True)
        own = [session for session in self._sessions.values() if session.user.name == user.name]
        for session in own[: len(own) + 1 - _MOST_OF_A_USER]:  # the oldest first
            self.end(session)
        if len(self._sessions) >= _MOST_SESSIONS:
            self._closing.spawn(connection.close(), name="logout")
            raise NearcastError(f"{_MOST_SESSIONS} sessions are open; somebody must log out first")
        session = LoginSession(secrets.token_urlsafe(32), user, self._clock() + _LIFETIME, address, over)
        self._sessions[session.secret] = session
        _log.info("%s (%s) logged in from %s", user.name, user.role, address)
        return session
