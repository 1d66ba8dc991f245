"""A NATS connection with two shortcuts on the path every message takes.

nats-py queues each message for a task of its subscription and parses all headers. Here a subscription may
be a *handler*, a plain function that gets the raw parts as they come off the socket; and `send` writes a command
whose header block is made already. All else (reconnecting, resubscribing, draining) is nats-py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.errors import BadSubscriptionError
from nats.errors import Error as NatsError

from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import drop
from nearcast.nats.identity.tokens import user_limits
from nearcast.nats.message_parser import MessageParser
from nearcast.nats.patched_client import PatchedClient
from nearcast.nats.refusals import (
    RefusedSubjects,
    is_payload_limit,
    is_refusal,
    is_subscription_limit,
    refusal_reason,
)
from nearcast.nats.reply_inbox import ReplyInbox
from nearcast.nats.stamp import RESERVED_BYTES
from nearcast.nats.subjects import subject_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nats.aio.subscription import Subscription

    from nearcast.nats.identity.credentials import Credentials

    Handler = Callable[[str, str, bytes, bytes], None]
    """Called with subject, reply, payload and the raw header block."""

__all__ = [
    "Connection",
    "ConnectionLostError",
    "PayloadTooLargeError",
    "check_url",
    "interest_settle",
    "open_connection",
]

_log = logging.getLogger(__name__)
_SCHEMES = ("nats", "tls", "ws", "wss")

# A broker ends the connection of who sends more than 4096 bytes for the line with subject, reply and sizes, or more
# than its limit for headers and payload. Who answers or passes on what others sent must not reach it.
_LONGEST_SUBJECTS = 4000
# Above this much unsent data a publisher waits for the socket. Small enough to keep latency, large enough to
# fill the pipe.
_UNSENT_BYTES = 1 << 20
_BUFFERED_WHILE_AWAY = 8 << 20
_NO_LIMIT = 1 << 62
# A server that hangs (or a link that swallows everything) is left after two pings without an answer.
_PING_SECONDS, _UNANSWERED_PINGS = 5, 2


class ConnectionLostError(NearcastError, ConnectionError):
    """No broker can be reached, and what may be buffered meanwhile is full or the connection was closed."""


class PayloadTooLargeError(NearcastError, ValueError):
    """A payload above the broker's limit; nothing was sent."""

    def __init__(self, topic: str, size: int, limit: int) -> None:
        super().__init__(f"payload of {size} bytes for topic {topic}: the broker takes at most {limit}")
        self.size, self.limit = size, limit


class Connection(PatchedClient):
    """nats-py's client with handlers and ready-made headers."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        super().__init__()
        self.credentials = credentials
        self.refusals = RefusedSubjects(credentials.user if credentials is not None else "nobody")
        self._payload_limit = _payload_limit(credentials)
        self._handlers: dict[int, Handler] = {}
        self.replies = ReplyInbox(self.new_inbox, self.subscribe_raw)
        self._ps = MessageParser(self, self._take)
        self._wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake.set_result(None)

    @property
    def link(self) -> tuple[str, int]:
        """What tells this link to a broker from those before and after a reconnection."""
        return self.server_id, int(self._server_info.get("client_id", 0))

    async def subscribe_raw(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """Subscribe with a plain function that is called for each message, in order."""
        self._handlers[self._sid + 1] = handler  # known before the first message can come
        return await self.subscribe(subject, queue=queue)

    async def unsubscribe_raw(self, subscription: Subscription) -> None:
        """End a subscription made with `subscribe_raw`."""
        self._handlers.pop(subscription._id, None)
        with contextlib.suppress(BadSubscriptionError):  # a connection that is closing has ended it already
            if not self.is_closed:
                await subscription.unsubscribe()

    async def drain_subscription(self, subscription: Subscription) -> None:
        """End a subscription made with `subscribe_raw`, after taking what the broker sent before it heard of it.

        A broker that is away has nothing to send, and hears of the end when it is back.
        """
        if not self.is_closed:
            await subscription.unsubscribe()
            with contextlib.suppress(NatsError, TimeoutError):
                await self.flush()
        self._handlers.pop(subscription._id, None)

    def set_handler(self, subscription: Subscription, handler: Handler) -> None:
        """Have another function take the messages of a subscription made with `subscribe_raw`."""
        self._handlers[subscription._id] = handler

    def send(self, subject: str, headers: bytes, payload: bytes, reply: str = "") -> None:
        """Queue one message; the caller awaits `wait_writable()` now and then. Subject and headers are trusted."""
        connected = self._status == Client.CONNECTED  # what `is_connected` says, without two calls per message
        if not connected:
            self._refuse_if_gone(len(payload))
        size, to, reply_to = len(headers), subject.encode(), reply.encode()
        if len(to) + len(reply_to) > _LONGEST_SUBJECTS or size + len(payload) > self._max_payload:
            drop("message to be sent", subject, "its subject or its size is more than the broker takes")
            return
        if headers:
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (to, reply_to, size, size + len(payload), headers, payload)
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (to, reply_to, len(payload), payload)
        self._pending.append(command)
        self._pending_data_size += len(command)
        queue = self._flush_queue
        if connected and queue is not None and queue.empty():
            queue.put_nowait(self._wake)

    def takes(self, subject: str, reply: str, size: int) -> bool:
        """Whether the broker takes a message of so many bytes, header block included. `send` drops others."""
        return len(subject.encode()) + len(reply.encode()) <= _LONGEST_SUBJECTS and size <= self._max_payload

    def forget_unsent(self, inbox: str) -> None:
        """Do not send messages that wait for a broker and are to be answered to this inbox."""
        mark = b" %b." % inbox.encode()
        self._pending = [frame for frame in self._pending if mark not in frame]
        self._pending_data_size = sum(map(len, self._pending))

    def forget_unsent_to(self, prefix: str) -> None:
        """Do not send messages that wait for a broker and are for subjects with this prefix."""
        start = b"HPUB %b" % prefix.encode()
        self._pending = [frame for frame in self._pending if not frame.startswith(start)]
        self._pending_data_size = sum(map(len, self._pending))

    def answer(self, reply: str, headers: bytes, payload: bytes) -> None:
        """Answer a request, if its sender waits for one and may be answered there."""
        if not reply:  # nobody waits; a publication to no subject would end the connection
            return
        if not subjects.is_answerable(reply):
            drop("request", reply, "its reply is not an inbox")
            return
        self.send(reply, headers, payload)

    @property
    def backlogged(self) -> bool:
        """Whether more than a socket's worth of data waits to be sent."""
        return self._pending_data_size > _UNSENT_BYTES

    async def wait_writable(self) -> None:
        """Wait until what was sent has gone to the socket."""
        if self.is_connected:
            await self._flush_pending(force_flush=True)

    def _refuse_if_gone(self, size: int) -> None:
        if self.is_closed or self.is_draining_pubs:
            raise ConnectionLostError("the connection is closed")
        if self._pending_data_size + size > _BUFFERED_WHILE_AWAY:
            raise ConnectionLostError(f"no broker answers, and {self._pending_data_size} bytes already wait for one")

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        self._max_payload = min(self._max_payload, self._payload_limit)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        if initial_connection and self.credentials is not None:
            await self.credentials.prepare(str(info.get("nonce", "")))

    async def _process_err(self, err_msg: str) -> None:
        # nats-py would close for good. The file may have been renewed: reconnecting reads it again. A token that has
        # expired or is revoked is an authentication; one whose signing key was taken away violates an authorization.
        refused = any(words in err_msg.lower() for words in ("authentication", "authorization violation"))
        if self.credentials is not None and self.is_connected and refused:
            _log.warning("%s: %s; connecting again", self.credentials.user, err_msg.strip("'"))
            await self._process_op_err(NatsError(f"nats: {err_msg}"))
            return
        self.refusals.note(err_msg)
        if is_subscription_limit(err_msg):  # nats-py would close for good, and the broker goes on
            return
        if is_payload_limit(err_msg) and self.is_connected:  # nats-py would close for good
            # A limit of the tenant, which no token of a user says. Sent again, the same message must not come back.
            self._payload_limit = max(min(self._payload_limit, self._max_payload) // 2, RESERVED_BYTES)
            _log.warning("the broker takes less than it says; from now on %d bytes are sent", self._payload_limit)
            await self._process_op_err(NatsError(f"nats: {err_msg}"))
            return
        await super()._process_err(err_msg)

    def _take(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        """A message came; whether a handler took it."""
        handler = self._handlers.get(sid)
        if handler is None:
            return False
        try:
            handler(subject_text(subject), subject_text(reply), data, headers)
        except Exception as error:  # else nats-py would stop reading: one odd message must not end the connection
            _dropped(subject, error)
        return True

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception as error:  # for example a reply that is not UTF-8
            _dropped(subject, error)


def _payload_limit(credentials: Credentials | None) -> int:
    """Bytes of a message, with its headers, that the token of a user allows."""
    limit = user_limits(credentials.claims).payload if credentials is not None else -1
    return limit + RESERVED_BYTES if limit >= 0 else _NO_LIMIT


def _dropped(subject: bytes, error: Exception) -> None:
    if drop("message", repr(subject), f"{type(error).__name__}: {error}"):
        _log.warning("a message could not be taken", exc_info=error)


def interest_settle(round_trip_s: float = 0.0) -> float:
    """Seconds until a new or ended subscription is known at every site. NATS gives no event for it.

    Interest travels from broker to broker (gateway, leaf node), so a few of the longest round trips bound it. The floor
    is for brokers on a busy machine: a handover between workers loses messages when it is too short.
    """
    return max(1.0, 4 * round_trip_s)


async def open_connection(
    urls: Sequence[str],
    *,
    name: str,
    timeout: float = 5.0,
    echo: bool = True,
    on_disconnect: Callable[[], Awaitable[None]] | None = None,
    on_reconnect: Callable[[], Awaitable[None]] | None = None,
    credentials: Credentials | None = None,
) -> Connection:
    """Connect to the first broker that answers; afterwards reconnect for as long as it takes."""
    for url in urls:
        check_url(url)
    if credentials is not None:
        credentials.refuse_expired()
    connection = Connection(credentials)
    refusals: list[Exception] = []
    opening = [True]  # emptied when it has opened, or will not

    async def failed(error: Exception) -> None:
        if not connection.is_connected and is_refusal(error):
            refusals.append(error)
            if len(urls) == 1 and opening:
                opening.clear()
                limit.reschedule(0)  # trying again would not help
        _log.debug("nats: %s", error)  # a lost connection is reported by the disconnect callback, too

    options: dict[str, Any] = {
        "name": name,
        "no_echo": not echo,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
        "error_cb": failed,
        "reconnect_time_wait": 0.2,
        "max_reconnect_attempts": -1,
        "connect_timeout": max(1, int(timeout)),
        "dont_randomize": True,
        "pending_size": _BUFFERED_WHILE_AWAY,
        "ping_interval": _PING_SECONDS,
        "max_outstanding_pings": _UNANSWERED_PINGS,
        **(credentials.options() if credentials is not None else {}),
    }
    try:
        async with asyncio.timeout(timeout) as limit:
            await connection.connect(list(urls), **options)
            opening.clear()
    except asyncio.CancelledError as error:
        opening.clear()
        await connection.close()
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled this: nats-py has closed the connection over an error, while it tried the next address.
        reason = refusal_reason(refusals[-1], credentials) if refusals else "the broker closed the connection"
        raise ConnectionLostError(f"cannot connect to {', '.join(urls)}: {reason}") from error
    except (TimeoutError, OSError, NatsError) as error:
        opening.clear()
        await connection.close()
        reason = str(error) or f"no answer within {timeout:g} s"
        if refusals or is_refusal(error):
            reason = refusal_reason(refusals[-1] if refusals else error, credentials)
        raise ConnectionLostError(f"cannot connect to {', '.join(urls)}: {reason}") from error
    if credentials is not None and credentials.ca and not connection.is_encrypted:
        await connection.close()
        raise ConnectionLostError(
            f"cannot connect to {', '.join(urls)}: it does not speak TLS, which the credentials ask for"
        )
    return connection


def check_url(url: str) -> str:
    """Return the address if it can be a broker's; raise InputError otherwise."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        valid = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or none of a port
        valid = False
    if not valid:
        raise InputError(f"the broker's address is {url!r}; allowed: an address such as nats://127.0.0.1:4222")
    return url
