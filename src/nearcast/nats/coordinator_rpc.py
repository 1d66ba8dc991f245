"""Requests to the coordinator that leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.rpc import NoAnswerError, RemoteError, call
from nearcast.nats.tasks import retry

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["CoordinatorError", "ask_coordinator", "ask_coordinator_until_known", "call_coordinator"]

T = TypeVar("T")

# Other sites' brokers hear of a new leader's subscriptions some time after its own broker has them.
_UNTIL_KNOWN = 1.0


class CoordinatorError(NearcastError):
    """No coordinator answers, or it could not do what was asked."""


class NoCoordinatorError(CoordinatorError):
    """Nobody listens where a coordinator would: the request was not made."""


async def call_coordinator(
    connection: Connection, noun: str, verb: str, body: Any, answer: type[T], timeout: float = 5.0
) -> T:
    """One request, its answer, or an InputError with the coordinator's words when it refuses."""
    return await ask_coordinator_until_known(connection, subjects.coordinator(noun, verb), body, answer, timeout)


async def ask_coordinator_until_known(
    connection: Connection, subject: str, body: Any, answer: type[T], timeout: float = 5.0
) -> T:
    """As `ask_coordinator`. When nobody listens, it asks again for a second: a new leader may not be known here yet."""
    within = min(timeout, _UNTIL_KNOWN)
    return await retry(
        lambda: ask_coordinator(connection, subject, body, answer, timeout), within=within, on=NoCoordinatorError
    )


async def ask_coordinator(connection: Connection, subject: str, body: Any, answer: type[T], timeout: float = 5.0) -> T:
    """As `call_coordinator`, once, with the subject spelt out: of a site or a client, about itself."""
    try:
        return await call(connection, subject, body, answer, timeout=timeout)
    except NoAnswerError as error:
        kind = NoCoordinatorError if error.nobody_listens else CoordinatorError
        raise kind("no coordinator answers; start one with: nearcast coordinator run") from error
    except RemoteError as error:
        raise CoordinatorError(str(error)) from error
