"""Requests and answers, by the conventions of NATS services: JSON bodies, errors in the headers
`Nats-Service-Error` and `Nats-Service-Error-Code`, `$SRV.PING|INFO|STATS` for those who look.

400 is the caller's mistake (InputError there), 409 a term that is over (StaleTermError), all else a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoRespondersError
from nats.micro import add_service
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import Encoding, MalformedError, decode, drop
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.refusals import RefusedError
from nearcast.nats.tasks import TaskSet, cancel_and_wait

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.micro.request import Request

    from nearcast.nats.connection import Connection

__all__ = ["CALLER", "Endpoint", "NoAnswerError", "RemoteError", "Server", "StaleTermError", "call"]

_log = logging.getLogger(__name__)
CALLER: ContextVar[str] = ContextVar("caller", default="anonymous")
"""Who sent the request that is being answered: the user whose inbox gets the answer."""
_LONGEST_ERROR = 2000
_MOST_REQUESTS, _MOST_OF_A_CALLER = 1000, 250  # that one server answers at the same time
T = TypeVar("T")


class NoAnswerError(NearcastError, TimeoutError):
    """Nobody answered a request. nobody_listens: there was no one to ask, as opposed to one who was silent."""

    def __init__(self, message: str, *, nobody_listens: bool) -> None:
        super().__init__(message)
        self.nobody_listens = nobody_listens


class RemoteError(NearcastError):
    """The other side could not do what was asked."""


class StaleTermError(RemoteError):
    """A command of a coordinator whose term is over. term: the highest one that the other side has seen."""

    def __init__(self, message: str, term: int) -> None:
        super().__init__(message)
        self.term = term


async def call(
    connection: Connection,
    subject: str,
    body: Any,
    answer: type[T],
    *,
    timeout: float = 5.0,
    encoding: Encoding = "json",
    reply: str = "",
) -> T:
    """One request, and its answer decoded as `answer`. reply: where the answer is to come, if not in an inbox.

    Raises NoAnswerError, InputError when the request was refused as wrong, RemoteError when it failed.
    """
    codec: Any = getattr(msgspec, encoding)
    try:
        payload = b"" if body is None else codec.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.EncodeError) as error:
        raise InputError(f"the request cannot be sent: {error}") from error
    try:
        answered = await _request(connection, subject, payload, reply, timeout)
    except MaxPayloadError:
        most = connection.max_payload
        raise InputError(f"the request has {len(payload)} bytes; allowed: {most}, what the broker takes") from None
    except (NatsError, TimeoutError) as error:
        nobody = isinstance(error, NoRespondersError)
        why = "nobody listens there" if nobody else f"no answer within {timeout:g} s"
        raise NoAnswerError(f"{subject}: {why}", nobody_listens=nobody) from error
    headers = answered.headers or {}
    if ERROR_HEADER in headers:
        raise _error(headers.get(ERROR_CODE_HEADER, ""), headers[ERROR_HEADER], answered.data)
    try:
        return decode(answered.data, answer, encoding)
    except MalformedError as error:
        raise RemoteError(f"{subject}: the answer is unreadable: {error}") from error


async def _request(connection: Connection, subject: str, payload: bytes, reply: str, timeout: float) -> Msg:
    if not reply:
        if connection.credentials is None:
            return await connection.request(subject, payload, timeout=timeout)
        with connection.refusals.awaited(subject) as refusal:
            asked = asyncio.ensure_future(connection.request(subject, payload, timeout=timeout))
            try:
                await asyncio.wait((asked, refusal), return_when=asyncio.FIRST_COMPLETED)
                if not asked.done():
                    raise RefusedError(f"{subject}: {connection.credentials.user} may not ask this")
                return asked.result()
            finally:
                await cancel_and_wait(asked)
    subscription = await connection.subscribe(reply, max_msgs=1)
    try:
        await connection.publish(subject, payload, reply=reply)
        answered = await subscription.next_msg(timeout=timeout)
    finally:
        with contextlib.suppress(NatsError):
            await subscription.unsubscribe()
    if answered.headers and answered.headers.get("Status") == "503":
        raise NoRespondersError
    return answered


@dataclass(frozen=True)
class Endpoint:
    """A subject, the type of its request (NoneType for an empty one), and what answers it.

    scope: what must stand behind the subject, given the request, such as the name of the client that asks. A broker
    lets each user publish to its own subjects only, and so nobody asks in the name of another.

    What the handler returns is the answer. What it raises becomes an error: InputError 400, StaleTermError 409.
    """

    name: str
    subject: str
    request: Any
    handler: Callable[[Any], Awaitable[Any]]
    encoding: Encoding = "json"
    scope: Callable[[Any], str] | None = None

    @property
    def listens_on(self) -> str:
        """The subject to subscribe to."""
        return self.subject if self.scope is None else f"{self.subject}.>"


class Server:
    """Answers requests. Each has a task of its own: a slow answer does not hold up the next.

    With a service name the endpoints can be discovered (`nats micro ls`); clients, of which there are many, have none.
    """

    def __init__(self, connection: Connection, endpoints: Sequence[Endpoint], service: str = "") -> None:
        self._connection, self._endpoints = connection, endpoints
        self._name = service
        self._service: Service | None = None
        self._subscriptions: list[Any] = []
        self._tasks = TaskSet()
        self._of_caller: Counter[str] = Counter()  # requests that are being answered

    async def start(self) -> None:
        """Listen from now on."""
        if self._name:
            self._service = await add_service(self._connection, ServiceConfig(self._name, "1.0.0"))
        for endpoint in self._endpoints:
            if self._service is None:
                handler = partial(self._take, endpoint)
                self._subscriptions.append(await self._connection.subscribe_raw(endpoint.listens_on, handler))
            else:
                # What `$SRV.INFO` says, so that nobody needs the code to know what an endpoint takes.
                metadata = {"request": getattr(endpoint.request, "__name__", ""), "encoding": endpoint.encoding}
                answer = partial(self._take_discovered, endpoint)
                config = EndpointConfig(endpoint.name, answer, subject=endpoint.listens_on, metadata=metadata)
                await self._service.add_endpoint(config)

    async def stop(self) -> None:
        """Answer no more."""
        await self._tasks.cancel()
        for subscription in self._subscriptions:
            await self._connection.unsubscribe_raw(subscription)
        if self._service is not None and not self._connection.is_closed:
            with contextlib.suppress(NatsError, TimeoutError):  # a broker that is away has nobody to tell
                await self._service.stop()

    async def _take_discovered(self, endpoint: Endpoint, request: Request) -> None:
        self._take(endpoint, request.subject, request._msg.reply, request.data)

    def _take(self, endpoint: Endpoint, subject: str, reply: str, payload: bytes, headers: bytes = b"") -> None:
        caller = subjects.inbox_owner(reply) if self._connection.credentials is not None else ""
        busy = None
        if len(self._tasks) >= _MOST_REQUESTS:
            busy = NearcastError(f"busy: {_MOST_REQUESTS} other requests are being answered")
        elif caller and self._of_caller[caller] >= _MOST_OF_A_CALLER:
            busy = NearcastError(f"busy: {_MOST_OF_A_CALLER} other requests of {caller} are being answered")
        if busy is not None:
            drop("request", endpoint.subject, busy)
            self._send(endpoint, reply, _error_headers("500", busy), b"")
            return
        self._of_caller[caller] += 1
        task = self._tasks.spawn(self._answer(endpoint, subject, reply, payload, caller), name=endpoint.subject)
        task.add_done_callback(lambda _: self._answered(caller))

    def _answered(self, caller: str) -> None:
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]

    async def _answer(self, endpoint: Endpoint, subject: str, reply: str, payload: bytes, caller: str) -> None:
        codec: Any = getattr(msgspec, endpoint.encoding)
        headers, body = b"", b""
        if caller:
            CALLER.set(caller)  # of this task alone
        try:
            request = decode(payload, endpoint.request, endpoint.encoding) if payload else _empty(endpoint.request)
            if endpoint.scope is not None and subject != f"{endpoint.subject}.{endpoint.scope(request)}":
                raise InputError(f"the request is not about {subject.removeprefix(endpoint.subject + '.')!r}")
            answer = await endpoint.handler(request)
            body = codec.encode(answer)
            if not self._connection.takes(reply, "", len(body)):  # it would not be sent, and not be missed
                size, body = len(body), b""
                raise NearcastError(f"the answer has {size} bytes, more than the broker takes; ask for less")
        except InputError as error:
            headers = _error_headers("400", error)
            if isinstance(error, MalformedError):
                drop("request", endpoint.subject, error)
        except StaleTermError as error:
            headers, body = _error_headers("409", error), b"%d" % error.term
        except NearcastError as error:
            headers = _error_headers("500", error)
        except Exception as error:
            if drop("request", endpoint.subject, error):
                _log.warning("request on %s failed", endpoint.subject, exc_info=error)
            headers = _error_headers("500", error)
        self._send(endpoint, reply, headers, body)

    def _send(self, endpoint: Endpoint, reply: str, headers: bytes, body: bytes) -> None:
        try:
            self._connection.answer(reply, headers, body)
        except ConnectionLostError as error:
            _log.warning("%s: not answered: %s", endpoint.subject, error)


def _empty(kind: Any) -> Any:
    """What an empty request stands for."""
    if kind in (None, type(None)):
        return None
    try:
        return msgspec.convert({}, kind)
    except msgspec.ValidationError as error:
        raise MalformedError(f"the request is empty: {error}") from None


def _error_headers(code: str, error: Exception) -> bytes:
    text = " ".join(str(error).split())[:_LONGEST_ERROR] or type(error).__name__
    return f"NATS/1.0\r\n{ERROR_HEADER}: {text}\r\n{ERROR_CODE_HEADER}: {code}\r\n\r\n".encode()


def _error(code: str, text: str, body: bytes) -> NearcastError:
    if code == "400":
        return InputError(text)
    if code == "409" and body.isdigit():
        return StaleTermError(text, int(body))
    return RemoteError(text)
