"""REST: the nouns and verbs of the command line under /api/v1, described by OpenAPI, and a stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from nearcast.config.validation import to_struct
from nearcast.domain.topic import TopicSpec
from nearcast.errors import InputError, NearcastError
from nearcast.nats.connection import PayloadTooLargeError
from nearcast.nats.refusals import RefusedError
from nearcast.web.changes import Changes
from nearcast.web.live import Live
from nearcast.web.login_limits import TooManyLoginsError
from nearcast.web.login_sessions import LoginError
from nearcast.web.metrics import WebMetrics
from nearcast.web.operations import NoDataClusterError, Operations
from nearcast.web.request_bodies import (
    Approval,
    Letters,
    Limit,
    MessageId,
    Name,
    Row,
    StoryAnnouncement,
    Target,
    Time,
    Topic,
    User,
)
from nearcast.web.rest_catalog import add_catalog
from nearcast.web.rest_messages import add_messages
from nearcast.web.users import ForbiddenError

__all__ = ["add_rest", "event_stream"]

_METHODS = ("GET", "POST", "PUT", "DELETE")
_LISTED = 10  # mistakes of one request
_LONGEST_VALUE = 200


def add_rest(app: FastAPI, operations: Operations, live: Live, metrics: WebMetrics) -> None:
    """Add everything below /api/v1, and answers for what goes wrong."""
    errors: dict[int | str, dict[str, Any]] = {
        400: {"description": "Refused: the message says what is wrong and what is allowed."},
        401: {"description": "Not logged in."},
        403: {"description": "Refused: a reader changes nothing, and a page of another origin does not ask."},
        409: {"description": "No data cluster answers a question for it."},
        503: {"description": "No coordinator or store answers."},
    }
    router = APIRouter(prefix="/api/v1", responses=errors)
    _add_registry(router, operations)
    add_catalog(router, operations)
    add_messages(router, operations, metrics)
    _add_plan(router, operations)
    _add_dead_letters(router, operations)
    _add_events(router, live, metrics)
    app.include_router(router)

    @app.exception_handler(NearcastError)
    async def refuse(request: Request, error: NearcastError) -> JSONResponse:
        headers = {"retry-after": str(error.retry_after)} if isinstance(error, TooManyLoginsError) else None
        return _AsciiResponse({"detail": str(error)}, _status(error), headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_request(request: Request, error: RequestValidationError) -> JSONResponse:
        return _AsciiResponse({"detail": _mistakes(error)}, 400)

    app.mount("/api/v1", _unknown_path(app))  # otherwise a page of the console would be the answer
    _describe_mistakes(app)


class _AsciiResponse(JSONResponse):
    """JSON with escapes: texts of a request may have what UTF-8 cannot have, such as half of a surrogate pair."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content).encode()


def _unknown_path(app: FastAPI) -> ASGIApp:
    """Answers what no route takes: 405 when the path takes other methods, else 404."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        outer = {**scope, "root_path": scope["app_root_path"]} if "app_root_path" in scope else scope
        routes = [route for route in app.routes if not isinstance(route, Mount)]
        allowed = [
            method
            for method in _METHODS
            if any(route.matches({**outer, "method": method})[0] is Match.FULL for route in routes)
        ]
        path, headers = scope["path"][:_LONGEST_VALUE], {"allow": ", ".join(allowed)}
        if allowed:
            detail = f"{path}: method is {scope['method'][:20]}; allowed: {headers['allow']}"
            await _AsciiResponse({"detail": detail}, 405, headers)(scope, receive, send)
            return
        detail = f"there is no {path}; /api/v1/openapi.json has all paths"
        await _AsciiResponse({"detail": detail}, 404)(scope, receive, send)

    return answer


def _describe_mistakes(app: FastAPI) -> None:
    """Take the answer 422 out of the description, which FastAPI puts there: it is 400."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        described = describe()
        for methods in described["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            described["components"]["schemas"].pop(name, None)
        return described

    app.openapi = openapi  # type: ignore[method-assign]


def _mistakes(error: RequestValidationError) -> str:
    """One sentence: each field, what is wrong with it, and its value."""
    found = []
    for one in error.errors()[:_LISTED]:
        place, *names = one["loc"]
        field = ".".join(map(str, names))
        what = f"{place}: {field}" if field and one["type"] != "json_invalid" else str(place)
        given = repr(one["input"]) if "input" in one and one["type"] not in ("missing", "json_invalid") else ""
        value = f" (it is {given[:_LONGEST_VALUE]})" if given else ""
        found.append(f"{what}: {one['msg']}{value}")
    return "; ".join(found)


def _status(error: NearcastError) -> int:
    kinds: tuple[tuple[type[NearcastError], int], ...] = (
        (InputError, 400), (PayloadTooLargeError, 400), (LoginError, 401), (ForbiddenError, 403), (RefusedError, 403),
        (NoDataClusterError, 409), (TooManyLoginsError, 429),
    )  # fmt: skip
    return next((code for kind, code in kinds if isinstance(error, kind)), 503)


def _add_registry(router: APIRouter, operations: Operations) -> None:
    ask = operations.ask

    @router.get("/coordinator")
    async def coordinator_status() -> Row:
        """The leader, the size of its registry, and the result of its last pass."""
        return dict(await ask("coordinator", "status"))

    @router.get("/sites")
    async def sites() -> list[Row]:
        """All sites: position, load against the watermark, clients, measured round trips."""
        return list(await ask("site", "map"))

    @router.get("/sites/{name}")
    async def site(name: Name) -> Row:
        """One site and its last report."""
        return dict(await ask("site", "info", name=name))

    @router.get("/topics")
    async def topics() -> list[Row]:
        """All topics: where they run, bound, measured latency and its parts."""
        return list(await ask("topic", "figures"))

    @router.post("/topics", status_code=201)
    async def add_topic(topic: Topic, user: User) -> Row:
        """Register a topic."""
        spec = msgspec.to_builtins(to_struct(topic.model_dump(), TopicSpec))
        return dict(await Changes(operations, user).ask("topic", "add", spec=spec))

    @router.get("/topics/{name}")
    async def topic(name: Name) -> Row:
        """One topic: its workers, replicas, latency, and why it stays where it is."""
        return dict(await ask("topic", "info", name=name))

    @router.delete("/topics/{name}", status_code=204)
    async def remove_topic(name: Name, user: User) -> None:
        """Unregister a topic; stored messages are kept."""
        await Changes(operations, user).ask("topic", "rm", name=name)

    @router.post("/topics/{name}/move")
    async def move_topic(name: Name, target: Target, user: User) -> Row:
        """Move a topic's processor to other sites; answers when that is done."""
        return dict(await Changes(operations, user).ask("topic", "move", name=name, to=target.to))

    @router.post("/topics/{name}/replicas")
    async def move_replicas(name: Name, target: Target, user: User) -> Row:
        """Have other stores keep a topic; answers when they have copied it, or after 5 s with `copying`."""
        return dict(await Changes(operations, user).ask("topic", "replicas", name=name, to=target.to))

    @router.get("/clients")
    async def clients() -> list[Row]:
        """All registered clients and their homes."""
        return list(await ask("client", "ls"))

    @router.get("/clients/{name}")
    async def client(name: Name) -> Row:
        """One client: its home, what it publishes and subscribes to, its round trips."""
        return dict(await ask("client", "info", name=name))

    @router.post("/clients/{name}/move")
    async def move_client(name: Name, target: Target, user: User) -> Row:
        """Move a client to another home."""
        return dict(await Changes(operations, user).ask("client", "move", name=name, to=target.to))

    @router.get("/stores")
    async def stores() -> list[Row]:
        """What the stores have of each topic."""
        return await operations.replicas(await ask("topic", "figures"))

    @router.get("/trace/{identity}")
    async def trace(identity: MessageId, topic: Annotated[str, Query(min_length=1, max_length=200)] = ">") -> Row:
        """One message's story, from what the stores keep: published, stored, processed, notified."""
        return (await operations.story(identity, topic)).to_dict()

    @router.get("/audit")
    async def audit() -> list[Row]:
        """Who changed what, the oldest first."""
        return list(await ask("audit", "ls"))

    @router.get("/settings")
    async def settings() -> Row:
        """What the coordinator that leads was started with."""
        return dict(await ask("coordinator", "settings"))


def _add_plan(router: APIRouter, operations: Operations) -> None:
    @router.get("/moves")
    async def moves() -> list[Row]:
        """The last moves, the oldest first: for which goal and why, and how they ended."""
        return list(await operations.ask("move", "ls"))

    @router.post("/plans", status_code=201)
    async def propose_plan() -> Row:
        """A plan for the present state, with its id and until when (Unix seconds) it can be executed."""
        return dict(await operations.ask("plan", "show"))

    @router.post("/plans/{identity}/execute")
    async def execute_plan(identity: Name, approval: Approval, user: User) -> Row:
        """Execute exactly what was shown, or the approved moves of it."""
        return dict(await Changes(operations, user).ask("plan", "execute", id=identity, moves=approval.moves))


def _add_dead_letters(router: APIRouter, operations: Operations) -> None:
    @router.get("/dead-letters")
    async def dead_letters(
        topic: Annotated[str, Query(min_length=1, max_length=200)] = ">",
        reason: Annotated[str, Query(max_length=1000)] = "",
        since: Time = None,
        until: Time = None,
    ) -> list[Row]:
        """Dead letters of durable topics, the oldest first. `reason`: a part of the reason. Times: of publication."""
        return [letter.to_dict() for letter in await operations.dead_letters(topic, (), reason, since, until)]

    @router.get("/dead-letters/{identity}")
    async def dead_letter(identity: MessageId, topic: Annotated[str, Query(min_length=1, max_length=200)] = ">") -> Row:
        """One dead letter with its payload."""
        found = await operations.dead_letters(topic, (identity,))
        if not found:
            raise InputError(f"topic {topic!r} has no dead letter with id {identity!r}")
        return found[0].to_dict() | {"payload": found[0].payload.decode(errors="backslashreplace")}

    @router.post("/dead-letters/retry")
    async def retry_dead_letters(letters: Letters, user: User) -> list[Row]:
        """Give dead letters to their processors again; what became of each."""
        return await Changes(operations, user).retry(letters.topic, letters.ids, force=letters.force)

    @router.post("/dead-letters/drop")
    async def drop_dead_letters(letters: Letters, user: User) -> Row:
        """Settle dead letters without trying them again."""
        return {"topic": letters.topic, "dropped": await Changes(operations, user).drop(letters.topic, letters.ids)}


def _add_events(router: APIRouter, live: Live, metrics: WebMetrics) -> None:
    @router.put("/announcement", status_code=204)
    async def announce(announcement: StoryAnnouncement, user: User) -> None:
        """Show a sentence above every page."""
        user.require_operator()
        live.announcement = announcement.text

    @router.get("/events", response_class=StreamingResponse)
    async def events(limit: Limit = None) -> StreamingResponse:
        """Server-sent events: the whole state once a second, as `state`."""
        return StreamingResponse(event_stream(live, metrics, limit), media_type="text/event-stream")


async def event_stream(live: Live, metrics: WebMetrics, limit: int | None = None) -> AsyncIterator[str]:
    """Each new state as a server-sent event; ends after `limit` of them."""
    number = sent = 0
    with metrics.streams.track_inprogress():
        while limit is None or sent < limit:
            snapshot = await live.next(number)
            number, sent = snapshot.number, sent + 1
            yield f"event: state\nid: {number}\ndata: {json.dumps(msgspec.to_builtins(snapshot))}\n\n"
