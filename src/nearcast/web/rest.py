"""REST: the nouns and verbs of the command line under /api/v1, described by OpenAPI, and a stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from nearcast.config.validation import to_struct
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError, NearcastError
from nearcast.web.access import authenticate
from nearcast.web.live import Live
from nearcast.web.operations import Operations

__all__ = ["add_rest"]

Row = dict[str, Any]
Name = Annotated[str, Path(min_length=1, max_length=200)]


class Body(BaseModel):
    """A request; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Target(Body):
    """Where to."""

    to: list[str] = Field(min_length=1, max_length=100)


class Topic(Body):
    """A topic, as in nearcast.toml."""

    name: str = Field(min_length=1, max_length=200)
    managed_by: list[str] = []
    replicas: list[str] = []
    quorum: int = Field(default=0, ge=0, le=1000)
    bound_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    keep_seconds: float | None = Field(default=None, gt=0, le=9_000_000_000, allow_inf_nan=False)
    ordered: bool = False
    max_attempts: int = Field(default=5, ge=1, le=1_000_000)
    max_topics: int | None = Field(default=None, ge=1, le=1_000_000)


class Approval(Body):
    """The moves of a plan that are to be executed, by their places in it; all for null."""

    moves: list[Annotated[int, Field(ge=0, le=1_000_000)]] | None = Field(default=None, max_length=10_000)


class Letters(Body):
    """Dead letters of a topic or pattern by their ids. force: also those that had all their attempts."""

    topic: str = Field(min_length=1, max_length=200)
    ids: list[str] = Field(min_length=1, max_length=10_000)
    force: bool = False


class StoryAnnouncement(Body):
    """What all who look at the console are told; nothing for an empty text."""

    text: str = Field(max_length=300)


def add_rest(app: FastAPI, operations: Operations, live: Live) -> None:
    """Add everything below /api/v1, and answers for what goes wrong."""
    errors: dict[int | str, dict[str, Any]] = {
        400: {"description": "Refused: the message says what is wrong and what is allowed."},
        403: {"description": "Refused: of a page of another origin."},
        503: {"description": "No coordinator or store answers."},
    }
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(authenticate)], responses=errors)
    _add_registry(router, operations)
    _add_plan(router, operations)
    _add_dead_letters(router, operations)
    _add_events(router, live)
    app.include_router(router)

    @app.exception_handler(NearcastError)
    async def refuse(request: Request, error: NearcastError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 400 if isinstance(error, InputError) else 503)


def _add_registry(router: APIRouter, operations: Operations) -> None:
    ask = operations.ask

    @router.get("/coordinator")
    async def coordinator_status() -> Row:
        return dict(await ask("coordinator", "status"))

    @router.get("/sites")
    async def sites() -> list[Row]:
        return list(await ask("site", "map"))

    @router.get("/sites/{name}")
    async def site(name: Name) -> Row:
        return dict(await ask("site", "info", name=name))

    @router.get("/topics")
    async def topics() -> list[Row]:
        return list(await ask("topic", "figures"))

    @router.post("/topics", status_code=201)
    async def add_topic(topic: Topic) -> Row:
        return await operations.add_topic(to_struct(topic.model_dump(), TopicSpec))

    @router.get("/topics/{name}")
    async def topic(name: Name) -> Row:
        return dict(await ask("topic", "info", name=name))

    @router.delete("/topics/{name}", status_code=204)
    async def remove_topic(name: Name) -> None:
        await ask("topic", "rm", name=name)

    @router.post("/topics/{name}/move")
    async def move_topic(name: Name, target: Target) -> Row:
        return await operations.move("topic", name, target.to)

    @router.get("/clients")
    async def clients() -> list[Row]:
        return list(await ask("client", "ls"))

    @router.get("/clients/{name}")
    async def client(name: Name) -> Row:
        return dict(await ask("client", "info", name=name))

    @router.post("/clients/{name}/move")
    async def move_client(name: Name, target: Target) -> Row:
        return await operations.move("client", name, target.to)

    @router.get("/datasets")
    async def datasets() -> list[Row]:
        return await operations.datasets()

    @router.get("/channels")
    async def channels() -> list[Row]:
        return await operations.channels()

    @router.get("/channels/{name}/subscriptions")
    async def subscriptions(name: Name) -> list[Row]:
        return list(await ask("channel", "subscriptions", name=name))


def _add_plan(router: APIRouter, operations: Operations) -> None:
    @router.get("/moves")
    async def moves() -> list[Row]:
        return list(await operations.ask("move", "ls"))

    @router.post("/plans", status_code=201)
    async def propose_plan() -> Row:
        """A plan for the present state, with its id and until when (Unix seconds) it can be executed."""
        return dict(await operations.ask("plan", "show"))

    @router.post("/plans/{identity}/execute")
    async def execute_plan(identity: Name, approval: Approval) -> Row:
        """Execute exactly what was shown, or the approved moves of it."""
        return await operations.execute_plan(identity, approval.moves)


def _add_dead_letters(router: APIRouter, operations: Operations) -> None:
    @router.get("/dead-letters")
    async def dead_letters(
        topic: Annotated[str, Query(min_length=1, max_length=200)] = ">",
        reason: Annotated[str, Query(max_length=1000)] = "",
    ) -> list[Row]:
        return [letter.to_dict() for letter in await operations.dead_letters(topic, reason=reason)]

    @router.post("/dead-letters/retry")
    async def retry_dead_letters(letters: Letters) -> list[Row]:
        return await operations.retry(letters.topic, letters.ids, force=letters.force)

    @router.post("/dead-letters/drop")
    async def drop_dead_letters(letters: Letters) -> Row:
        return {"topic": letters.topic, "dropped": await operations.drop(letters.topic, letters.ids)}


def _add_events(router: APIRouter, live: Live) -> None:
    @router.put("/announcement", status_code=204)
    async def announce(announcement: StoryAnnouncement) -> None:
        live.announcement = announcement.text

    @router.get("/events", response_class=StreamingResponse)
    async def events(
        limit: Annotated[int | None, Query(ge=1, le=1_000_000, description="End after so many.")] = None,
    ) -> StreamingResponse:
        """Server-sent events: the whole state once a second, as `state`."""

        async def stream() -> AsyncIterator[str]:
            number = sent = 0
            while limit is None or sent < limit:
                snapshot = await live.next(number)
                number, sent = snapshot.number, sent + 1
                yield f"event: state\nid: {number}\ndata: {json.dumps(msgspec.to_builtins(snapshot))}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")
