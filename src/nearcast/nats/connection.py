"""A NATS connection with two shortcuts on the path every message takes.

nats-py queues each message for a task of its subscription and parses all headers. Here a subscription may
be a *handler*, a plain function that gets the raw parts as they come off the socket; and `send` writes a command
whose header block is made already. All else (reconnecting, resubscribing, draining) is nats-py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.errors import BadSubscriptionError
from nats.errors import Error as NatsError

from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import drop
from nearcast.nats.message_parser import MessageParser
from nearcast.nats.tasks import cancel_and_wait, keep_cancellation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from nearcast.nats.identity.credentials import Credentials

    Handler = Callable[[str, str, bytes, bytes], None]
    """Called with subject, reply, payload and the raw header block."""

__all__ = [
    "RESERVED_BYTES",
    "Connection",
    "ConnectionLostError",
    "PayloadTooLargeError",
    "interest_settle",
    "open_connection",
]

_log = logging.getLogger(__name__)
_VIOLATION = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE)
_REFUSALS_KEPT = 1000
_CLOSE_LIMIT = 5.0
_SCHEMES = ("nats", "tls", "ws", "wss")

# What a message gains on its way (its stamp, the frame of a history page) must fit under the broker's limit, too.
# Brokers are configured to take this much more than what clients may send.
RESERVED_BYTES = 4096
# Above this much unsent data a publisher waits for the socket. Small enough to keep latency, large enough to
# fill the pipe.
_UNSENT_BYTES = 1 << 20
_BUFFERED_WHILE_AWAY = 8 << 20
# A server that hangs (or a link that swallows everything) is left after two pings without an answer.
_PING_SECONDS, _UNANSWERED_PINGS = 5, 2


class ConnectionLostError(NearcastError, ConnectionError):
    """No broker can be reached, and what may be buffered meanwhile is full or the connection was closed."""


class PayloadTooLargeError(NearcastError, ValueError):
    """A payload above the broker's limit; nothing was sent."""

    def __init__(self, topic: str, size: int, limit: int) -> None:
        super().__init__(f"payload of {size} bytes for topic {topic}: the broker takes at most {limit}")
        self.size, self.limit = size, limit


class Connection(Client):
    """nats-py's client with handlers and ready-made headers."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        super().__init__()
        self.credentials = credentials
        self.refused: dict[str, int] = {}  # how often, by action and subject in small letters
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._handlers: dict[int, Handler] = {}
        self._ps = MessageParser(self, self._take)
        self._wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake.set_result(None)

    @property
    def is_encrypted(self) -> bool:
        """Whether what is sent can be read by the broker only."""
        return bool(self._server_info.get("tls_required"))

    @property
    def server_name(self) -> str:
        """The name of the server at the other end: the site's name for a broker."""
        return str(self._server_info.get("server_name", ""))

    @property
    def server_id(self) -> str:
        """What tells the server at the other end from all others; a new one after a restart."""
        return str(self._server_info.get("server_id", ""))

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

    async def close(self) -> None:
        """Close; a server that has gone already is no error."""
        try:
            async with asyncio.timeout(_CLOSE_LIMIT):  # a TLS transport may wait forever for the other side
                await super().close()
        # A TimeoutError is an OSError, too. uvloop: the transport is closed. asyncio: a TLS transport whose connection
        # was lost has no protocol any more, and nats-py writes what is pending.
        except (OSError, RuntimeError, AttributeError) as error:
            _log.debug("nats: %s", error)
        except asyncio.CancelledError:
            # nats-py cancels a reconnection; if that waits for the end of the same transport, so does this no more.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        # A reconnection under way may outlive nats-py's one cancellation.
        await cancel_and_wait(self._reconnection_task, self._reading_task, self._ping_interval_task, self._flusher_task)
        self._status = Client.CLOSED
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    async def flush(self, timeout: float = 10) -> None:
        """Wait until the broker has all that was sent."""
        with keep_cancellation():
            await super().flush(timeout)  # type: ignore[arg-type]

    async def request(self, *args: Any, **options: Any) -> Msg:
        """Ask, and wait for the answer."""
        with keep_cancellation():
            return await super().request(*args, **options)

    def send(self, subject: str, headers: bytes, payload: bytes, reply: str = "") -> None:
        """Queue one message; the caller awaits `wait_writable()` now and then. Subject and headers are trusted."""
        connected = self._status == Client.CONNECTED  # what `is_connected` says, without two calls per message
        if not connected:
            self._refuse_if_gone(len(payload))
        size = len(headers)
        if headers:
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
                subject.encode(),
                reply.encode(),
                size,
                size + len(payload),
                headers,
                payload,
            )
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload)
        self._pending.append(command)
        self._pending_data_size += len(command)
        queue = self._flush_queue
        if connected and queue is not None and queue.empty():
            queue.put_nowait(self._wake)

    def forget_unsent(self, inbox: str) -> None:
        """Do not send messages that wait for a broker and are to be answered to this inbox."""
        mark = b" %b." % inbox.encode()
        self._pending = [frame for frame in self._pending if mark not in frame]
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

    async def _send_ping(self, future: asyncio.Future[None] | None = None) -> None:
        # nats-py writes a ping at once, ahead of what waits to be sent; its answer would confirm nothing.
        if self._pending and self._transport is not None and self.is_connected:
            self._transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0
        await super()._send_ping(future)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        with keep_cancellation():
            return await super()._flush_pending(force_flush)

    def _refuse_if_gone(self, size: int) -> None:
        if self.is_closed or self.is_draining_pubs:
            raise ConnectionLostError("the connection is closed")
        if self._pending_data_size + size > _BUFFERED_WHILE_AWAY:
            raise ConnectionLostError(f"no broker answers, and {self._pending_data_size} bytes already wait for one")

    async def _connect_to_server(self, s: Any) -> None:
        if self.is_closed:  # a reconnection that did not hear of it would open the connection again
            raise asyncio.CancelledError
        if self._transport is not None:  # of an attempt that was not answered; nats-py would forget it
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        writer = getattr(self._transport, "_io_writer", None)
        if self.is_encrypted and writer is not None:
            # nats-py does not tell the stream that it is TLS now, and its end would be warned of.
            writer.transport.get_protocol()._over_ssl = True
            # uvloop makes a TLS record of each chunk, and nats-py gives one per message.
            transport: Any = self._transport
            transport.writelines = lambda chunks: writer.write(b"".join(chunks))

    async def _read_loop(self) -> None:
        await super()._read_loop()
        task = asyncio.current_task()
        if self.is_connected and task is not None and not task.cancelling():
            # It stopped over an error. nats-py would go on writing, and never hear anything again.
            await self._process_op_err(NatsError("nats: the reader stopped"))

    async def _process_err(self, err_msg: str) -> None:
        # nats-py would close for good. The file may have been renewed: reconnecting reads it again.
        if self.credentials is not None and self.is_connected and "authentication" in err_msg.lower():
            _log.warning("%s: %s; connecting again", self.credentials.user, err_msg.strip("'"))
            await self._process_op_err(NatsError(f"nats: {err_msg}"))
            return
        if found := _VIOLATION.search(err_msg):
            self._note_refusal(*found.groups())
        await super()._process_err(err_msg)

    def _note_refusal(self, action: str, subject: str) -> None:
        what = f"{action.lower()} {subject}"
        if len(self.refused) < _REFUSALS_KEPT or what in self.refused:
            self.refused[what] = self.refused.get(what, 0) + 1
        if self.refused.get(what) == 1:
            user = self.credentials.user if self.credentials is not None else "nobody"
            _log.warning("the broker refuses %s: %s may not", what, user)
        for waiting in self._waiting.get(subject, ()):
            if not waiting.done():
                waiting.set_result(None)

    @contextlib.contextmanager
    def refusal_of(self, subject: str) -> Iterator[asyncio.Future[None]]:
        """A future that is done when the broker refuses what is published to a subject meanwhile."""
        refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        subject = subject.lower()  # nats-py gives errors in small letters
        waiting = self._waiting.setdefault(subject, set())
        waiting.add(refusal)
        try:
            yield refusal
        finally:
            waiting.discard(refusal)
            if not waiting:
                self._waiting.pop(subject, None)

    async def _process_op_err(self, e: Exception) -> None:
        # nats-py waits until what is unsent has gone; a server that hangs never takes it.
        writer = getattr(self._transport, "_io_writer", None)
        if self.is_connected and writer is not None:
            writer.transport.abort()
        await super()._process_op_err(e)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():  # whoever flushed gave up; nats-py would stop reading over it
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    def _take(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> bool:
        """A message came; whether a handler took it."""
        handler = self._handlers.get(sid)
        if handler is None:
            return False
        try:
            handler(subject.decode(), reply.decode(), data, headers)
        except Exception as error:  # else nats-py would stop reading: one odd message must not end the connection
            _dropped(subject, error)
        return True

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except Exception as error:  # for example a reply that is not UTF-8
            _dropped(subject, error)


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
    on_error: Callable[[Exception], Awaitable[None]] | None = None,
    credentials: Credentials | None = None,
) -> Connection:
    """Connect to the first broker that answers; afterwards reconnect for as long as it takes."""
    for url in urls:
        _check_url(url)
    if credentials is not None:
        credentials.refuse_expired()
    connection = Connection(credentials)
    refusals: list[Exception] = []
    opening = [True]  # emptied when it has opened, or will not

    async def failed(error: Exception) -> None:
        if not connection.is_connected and _is_refusal(error):
            refusals.append(error)
            if len(urls) == 1 and opening:
                opening.clear()
                limit.reschedule(0)  # trying again would not help
        await (on_error or _ignore)(error)

    options: dict[str, Any] = {
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
        "error_cb": failed,
        "reconnect_time_wait": 0.2,
        **(credentials.options() if credentials is not None else {}),
    }
    try:
        async with asyncio.timeout(timeout) as limit:
            await connection.connect(
                list(urls),
                name=name,
                no_echo=not echo,
                max_reconnect_attempts=-1,
                connect_timeout=max(1, int(timeout)),
                dont_randomize=True,
                pending_size=_BUFFERED_WHILE_AWAY,
                ping_interval=_PING_SECONDS,
                max_outstanding_pings=_UNANSWERED_PINGS,
                **options,
            )
            opening.clear()
    except asyncio.CancelledError as error:
        opening.clear()
        await connection.close()
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled this: nats-py has closed the connection over an error, while it tried the next address.
        reason = _refusal(refusals[-1], credentials) if refusals else "the broker closed the connection"
        raise ConnectionLostError(f"cannot connect to {', '.join(urls)}: {reason}") from error
    except (TimeoutError, OSError, NatsError) as error:
        opening.clear()
        await connection.close()
        reason = str(error) or f"no answer within {timeout:g} s"
        if refusals or _is_refusal(error):
            reason = _refusal(refusals[-1] if refusals else error, credentials)
        raise ConnectionLostError(f"cannot connect to {', '.join(urls)}: {reason}") from error
    if credentials is not None and credentials.ca and not connection.is_encrypted:
        await connection.close()
        raise ConnectionLostError(
            f"cannot connect to {', '.join(urls)}: it does not speak TLS, which the credentials ask for"
        )
    return connection


def _is_refusal(error: Exception) -> bool:
    text = str(error).lower()
    words = ("authorization violation", "authentication", "maximum account", "maximum connections")
    return isinstance(error, ssl.SSLError) or any(word in text for word in words)


def _refusal(error: Exception, credentials: Credentials | None) -> str:
    """Why a broker and a client do not trust each other, in words that say what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        how = "credentials name another authority" if credentials and credentials.ca else "there are no credentials"
        hint = "" if "expired" in error.verify_message else f"; {how}"
        return f"the broker's certificate is not accepted: {error.verify_message}{hint}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if "maximum" in str(error).lower():
        return f"the broker refuses more: {str(error).removeprefix('nats: ').strip()}"
    if credentials is None:
        return "the broker asks for credentials; give a file of `nearcast auth add` or set NEARCAST_CREDS"
    return (
        f"the broker refuses the credentials of {credentials.user}: they are revoked, expired or of another deployment"
    )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        valid = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or none of a port
        valid = False
    if not valid:
        raise InputError(f"the broker's address is {url!r}; allowed: an address such as nats://127.0.0.1:4222")


async def _ignore(error: Exception) -> None:
    """A lost connection is reported by the disconnect callback; nats-py reports it here once more."""
    _log.debug("nats: %s", error)
