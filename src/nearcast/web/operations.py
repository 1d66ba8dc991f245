"""What console and REST read, on one connection to any broker: the requests of the command line."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from nats.errors import Error as NatsError

from nearcast.client.channel_trace import find_whole_story
from nearcast.client.dead_letters import DeadLetters, LetterFilter, StoredLetter
from nearcast.client.trace import MessageStory
from nearcast.domain.topic import check_pattern
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.protocol.data_cluster import (
    AdHocAnswer,
    AdHocQuery,
    ChannelCheck,
    DataClusterState,
    QuarantinedRecord,
    QuarantineRequest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.domain.channel import ChannelSpec
    from nearcast.domain.dataset import DatasetSpec
    from nearcast.nats.connection import Connection

__all__ = ["NoDataClusterError", "Operations", "ask_cluster"]

_SHORT, _QUERY_LIMIT = 3.0, 60.0
T = TypeVar("T")


class NoDataClusterError(NearcastError):
    """Nobody runs the data cluster."""

    def __init__(self) -> None:
        super().__init__("no data cluster answers; start one with: nearcast cluster run")


class Operations:
    """Requests to the coordinator that leads, to the stores and to the catalog."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._letters = DeadLetters(connection)

    async def ask(self, noun: str, verb: str, *, timeout: float = 10.0, **body: Any) -> Any:
        """One request to the coordinator that leads."""
        return await call_coordinator(self._connection, noun, verb, body, object, timeout)

    async def dead_letters(
        self,
        topic: str,
        ids: Iterable[str] = (),
        reason: str = "",
        since: float | None = None,
        until: float | None = None,
    ) -> list[StoredLetter]:
        """Dead letters of durable topics, oldest first. since, until: of the publication, seconds since 1970."""
        times = (None if at is None else round(at * 1e6) for at in (since, until))
        return await self._letters.find(LetterFilter(check_pattern(topic), frozenset(ids), reason, *times))

    async def story(self, message_id: str, topic: str) -> MessageStory:
        """What the stores know of one message."""
        return await find_whole_story(self._connection, message_id, check_pattern(topic))

    async def datasets(self) -> dict[str, DatasetSpec]:
        """The datasets of the catalog by name."""
        catalog = await self._catalog()
        return {} if catalog is None else await catalog.datasets()

    async def channels(self) -> dict[str, ChannelSpec]:
        """The channels of the catalog by name."""
        catalog = await self._catalog()
        return {} if catalog is None else await catalog.channels()

    async def dataset(self, name: str) -> DatasetSpec:
        """A dataset; InputError when there is none of this name."""
        return _named("dataset", await self.datasets(), name)

    async def channel(self, name: str) -> ChannelSpec:
        """A channel; InputError when there is none of this name."""
        return _named("channel", await self.channels(), name)

    async def explain(self, channel: str) -> str:
        """The statement for all subscriptions of a channel, and Spark's plan of it."""
        check = ChannelCheck(await self.channel(channel), list((await self.datasets()).values()))
        return await ask_cluster(self._connection, "explain-channel", check, str)

    async def faults(self) -> dict[str, str]:
        """Why channels (by name) and subscriptions (`<channel>.<key>`) are switched off or failed."""
        catalog = await self._catalog()
        return {} if catalog is None else await catalog.faults()

    async def cluster_state(self) -> DataClusterState | None:
        """Of the data cluster; none where none runs."""
        try:
            return await call(self._connection, subjects.data_cluster("state"), None, DataClusterState, timeout=_SHORT)
        except NoAnswerError:
            return None

    async def quarantine(self, dataset: str, limit: int) -> list[QuarantinedRecord]:
        """Records of a dataset that were refused, the newest first."""
        return await ask_cluster(
            self._connection, "quarantine", QuarantineRequest(dataset, limit), list[QuarantinedRecord]
        )

    async def query(self, text: str, limit: int) -> AdHocAnswer:
        """Run one SELECT over the datasets."""
        return await ask_cluster(self._connection, "query", AdHocQuery(text, limit), AdHocAnswer)

    async def replicas(self, topics: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Each stored copy of each topic: what its store has of it. missing: fewer than the copy with the most."""
        copies = [(topic["topic"], site) for topic in topics for site in topic["replicas"]]
        rows = list(await asyncio.gather(*(self._replica(topic, site) for topic, site in copies)))
        most: dict[str, int] = {}
        for row in rows:
            most[row["topic"]] = max(most.get(row["topic"], 0), row["messages"] or 0)
        for row in rows:
            row["missing"] = None if row["messages"] is None else most[row["topic"]] - row["messages"]
        return rows

    async def _replica(self, topic: str, site: str) -> dict[str, Any]:
        row: dict[str, Any] = {"topic": topic, "site": site, "messages": None, "bytes": None, "newest": None}
        subject = f"{subjects.store_api(site)}.STREAM.INFO.{subjects.stream_name(topic)}"
        try:
            answered = await self._connection.request(subject, b"", timeout=_SHORT)
            info = msgspec.json.decode(answered.data, type=dict[str, Any])
        except (NatsError, TimeoutError, msgspec.DecodeError) as error:
            return row | {"problem": str(error) or "no answer"}
        if "state" not in info:
            return row | {"problem": str(info.get("error", {}).get("description", "no such stream"))}
        state = info["state"]
        newest = str(state.get("last_ts", ""))[:19].replace("T", " ") if state["messages"] else None
        return row | {"messages": state["messages"], "bytes": state["bytes"], "newest": newest, "problem": ""}

    async def cloud_store(self) -> str | None:
        """The site whose store has the catalog and the audit log."""
        for site in await self.ask("site", "map"):
            if site["kind"] == "cloud" and site["store"]:
                return str(site["site"])
        return None

    async def _catalog(self) -> Catalog | None:
        """That of the cloud; none where datasets were never added."""
        if (store := await self.cloud_store()) is None:
            return None
        catalog = Catalog(self._connection, store)
        return catalog if await catalog.exists() else None


async def ask_cluster(connection: Connection, verb: str, body: Any, answer: type[T]) -> T:
    """One request to the data cluster."""
    try:
        return await call(connection, subjects.data_cluster(verb), body, answer, timeout=_QUERY_LIMIT)
    except NoAnswerError as error:
        raise NoDataClusterError from error


def _named(kind: str, known: dict[str, T], name: str) -> T:
    if name not in known:
        raise InputError(f"there is no {kind} {name!r}; there are: {', '.join(known) or 'none'}")
    return known[name]
