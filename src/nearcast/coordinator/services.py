"""What the coordinator that leads answers: registration, questions and wishes, by the conventions of NATS services."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from nats.micro import add_service
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from nearcast.domain.errors import InputError, NearcastError
from nearcast.wire import subjects

if TYPE_CHECKING:
    from nats.micro.request import Request

    from nearcast.wire.connection import Connection

__all__ = ["Endpoint", "serve"]

_log = logging.getLogger(__name__)
Endpoint = tuple[str, str, Any, Callable[[Any], Awaitable[Any]]]
"""Noun, verb, the type of the request, and what answers it."""


async def serve(connection: Connection, endpoints: list[Endpoint]) -> Service:
    """Answer requests until the service is stopped. A refusal is an error 400 with a sentence for the user."""
    service = await add_service(
        connection, ServiceConfig("nearcast-coordinator", "1.0.0", "Nearcast: registry, plans and moves")
    )
    for noun, verb, kind, answer in endpoints:
        await service.add_endpoint(
            EndpointConfig(f"{noun}-{verb}", _handler(kind, answer), subject=subjects.coordinator(noun, verb))
        )
    await connection.flush()
    return service


def _handler(kind: Any, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Request], Awaitable[None]]:
    decode = msgspec.json.Decoder(kind).decode

    async def handle(request: Request) -> None:
        try:
            body = msgspec.json.encode(await answer(decode(request.data)))
        except (InputError, msgspec.DecodeError) as error:
            await request.respond_error("400", _one_line(error))
        except NearcastError as error:
            await request.respond_error("500", _one_line(error))
        except Exception as error:
            _log.exception("request on %s", request.subject)
            await request.respond_error("500", f"the coordinator failed: {_one_line(error)}")
        else:
            await request.respond(body)

    return handle


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
