"""REST of messages: publish, feed, ask for the past, and a stream of a topic's messages as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from nearcast.domain.topic import check_pattern
from nearcast.errors import NearcastError
from nearcast.web.metrics import WebMetrics
from nearcast.web.operations import Operations
from nearcast.web.request_bodies import FedRecords, Limit, Name, Publication, Row, Time, User

if TYPE_CHECKING:
    from nearcast.web.user_client import UserClient

__all__ = ["add_messages", "message_stream"]

_KEEP_ALIVE = 15.0


def add_messages(router: APIRouter, operations: Operations, metrics: WebMetrics) -> None:
    """Add what is below /topics/{name} and /datasets/{name} and about messages."""

    @router.post("/topics/{name}/messages", status_code=201)
    async def publish(name: Name, publication: Publication, user: User) -> Row:
        """Publish to a topic as JSON; answers when as many stores have it as the topic's quorum (or `quorum`) says."""
        user.require_operator()
        receipt = await user.client.publish(name, publication.data, publication.quorum)
        return {"topic": name, "id": receipt.id, "stores": list(receipt.stores)}

    @router.get("/topics/{name}/history")
    async def history(
        name: Name,
        user: User,
        since: Time = None,
        until: Time = None,
        last: Annotated[int, Query(ge=1, le=1000)] = 100,
        publications: bool = False,
    ) -> list[Row]:
        """The last past messages of a durable topic or pattern, the oldest first.

        `publications`: what was published, not notifications.
        """
        found = await user.client.history(name, since, until, last, publications=publications)
        return [message.to_dict() for message in found]

    @router.get("/topics/{name}/events", response_class=StreamingResponse)
    async def messages(name: Name, user: User, limit: Limit = None) -> StreamingResponse:
        """Server-sent events: the messages of a topic or pattern as they come, as `message`."""
        stream = message_stream(user.client, check_pattern(name), metrics, limit)
        return StreamingResponse(stream, media_type="text/event-stream")

    @router.post("/datasets/{name}/records", status_code=201)
    async def feed(name: Name, fed: FedRecords, user: User) -> Row:
        """Feed records to a dataset; answers when the cloud's store has all. After an error it may have some."""
        user.require_operator()
        await operations.dataset(name)
        return {"name": name, "records": await user.client.feed(name, fed.records)}


async def message_stream(
    client: UserClient, topic: str, metrics: WebMetrics, limit: int | None = None
) -> AsyncIterator[str]:
    """Each message as a server-sent event, and a comment when none comes; ends after `limit` of them."""
    sent = 0
    with metrics.streams.track_inprogress():
        try:
            async with await client.subscribe(topic) as subscription:
                yield "event: subscribed\ndata: {}\n\n"
                while limit is None or sent < limit:
                    try:
                        async with asyncio.timeout(_KEEP_ALIVE):
                            message = await anext(subscription)
                    except TimeoutError:
                        yield ": still here\n\n"
                        continue
                    sent += 1
                    row = message.to_dict()
                    identity = f"id: {row['id']}\n" if row["id"].isprintable() else ""
                    yield f"event: message\n{identity}data: {json.dumps(row)}\n\n"
        except StopAsyncIteration:  # the subscription was closed: the user has logged out
            return
        except NearcastError as error:
            yield f"event: error\ndata: {json.dumps({'detail': str(error)})}\n\n"
