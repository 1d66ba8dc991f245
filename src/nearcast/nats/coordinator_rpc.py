"""Requests to the coordinator that leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import NoAnswerError, RemoteError, call

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["CoordinatorError", "ask_coordinator", "call_coordinator"]

T = TypeVar("T")


class CoordinatorError(NearcastError):
    """No coordinator answers, or it could not do what was asked."""


async def call_coordinator(
    connection: Connection, noun: str, verb: str, body: Any, answer: type[T], timeout: float = 5.0
) -> T:
    """One request, its answer, or an InputError with the coordinator's words when it refuses."""
    return await ask_coordinator(connection, subjects.coordinator(noun, verb), body, answer, timeout)


async def ask_coordinator(connection: Connection, subject: str, body: Any, answer: type[T], timeout: float = 5.0) -> T:
    """As `call_coordinator`, with the subject spelt out: of a site or a client, about itself."""
    try:
        return await call(connection, subject, body, answer, timeout=timeout)
    except NoAnswerError as error:
        raise CoordinatorError("no coordinator answers; start one with: nearcast coordinator run") from error
    except RemoteError as error:
        raise CoordinatorError(str(error)) from error
