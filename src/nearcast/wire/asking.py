"""Asking the coordinator that leads, by the conventions of NATS services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.micro.request import ERROR_CODE_HEADER, ERROR_HEADER

from nearcast.domain.errors import InputError, NearcastError
from nearcast.wire import subjects

if TYPE_CHECKING:
    from nearcast.wire.connection import Connection

__all__ = ["CoordinatorError", "ask_coordinator"]

T = TypeVar("T")


class CoordinatorError(NearcastError):
    """No coordinator answers, or it could not do what was asked."""


async def ask_coordinator(
    connection: Connection, noun: str, verb: str, body: Any, answer: type[T], timeout: float = 5.0
) -> T:
    """One request, its answer, or an InputError with the coordinator's words when it refuses."""
    subject = subjects.coordinator(noun, verb)
    try:
        reply = await connection.request(subject, msgspec.json.encode(body), timeout=timeout)
    except (NoRespondersError, NatsError, TimeoutError) as error:
        raise CoordinatorError("no coordinator answers; start one with: nearcast coordinator run") from error
    if reply.headers and ERROR_HEADER in reply.headers:
        kind = InputError if reply.headers.get(ERROR_CODE_HEADER) == "400" else CoordinatorError
        raise kind(reply.headers[ERROR_HEADER])
    return msgspec.json.decode(reply.data, type=answer)
