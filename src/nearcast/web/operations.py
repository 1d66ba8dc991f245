"""What console and REST can do, on one connection to any broker: the requests of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.client.dead_letters import DeadLetters, LetterFilter, StoredLetter
from nearcast.domain.topic import TopicSpec, check_pattern
from nearcast.errors import InputError
from nearcast.nats.catalog import Catalog
from nearcast.nats.coordinator_rpc import call_coordinator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.nats.connection import Connection

__all__ = ["Operations"]

_MOVE_LIMIT = 600.0
_RETRIES_PER_S = 100.0


class Operations:
    """Requests to the coordinator that leads, to the stores and to the catalog."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._letters = DeadLetters(connection)

    async def ask(self, noun: str, verb: str, *, timeout: float = 10.0, **body: Any) -> Any:
        """One request to the coordinator that leads."""
        return await call_coordinator(self._connection, noun, verb, body, object, timeout)

    async def move(self, noun: str, name: str, to: list[str]) -> dict[str, Any]:
        """Move a topic or a client."""
        return dict(await self.ask(noun, "move", timeout=_MOVE_LIMIT, name=name, to=to))

    async def add_topic(self, spec: TopicSpec) -> dict[str, Any]:
        """Register a topic."""
        return dict(await self.ask("topic", "add", spec=msgspec.to_builtins(spec)))

    async def execute_plan(self, identity: str, moves: list[int] | None) -> dict[str, Any]:
        """Execute a plan that was shown, or some of its moves."""
        return dict(await self.ask("plan", "execute", timeout=_MOVE_LIMIT, id=identity, moves=moves))

    async def dead_letters(self, topic: str, ids: Iterable[str] = (), reason: str = "") -> list[StoredLetter]:
        """Dead letters of durable topics, oldest first."""
        return await self._letters.find(LetterFilter(check_pattern(topic), frozenset(ids), reason))

    async def retry(self, topic: str, ids: Iterable[str], *, force: bool) -> list[dict[str, Any]]:
        """Give dead letters to their processors again; what became of each."""
        letters = await self.dead_letters(topic, ids)
        return [
            {"id": one.letter.id, "topic": one.letter.topic, "outcome": one.outcome, "sent": one.sent}
            async for one in self._letters.retry(letters, _RETRIES_PER_S, force=force)
        ]

    async def drop(self, topic: str, ids: Iterable[str]) -> int:
        """Settle dead letters without trying them again."""
        return await self._letters.drop(await self.dead_letters(topic, ids))

    async def datasets(self) -> list[dict[str, Any]]:
        """The datasets of the catalog."""
        catalog = await self._catalog()
        return [] if catalog is None else [msgspec.to_builtins(spec) for spec in (await catalog.datasets()).values()]

    async def channels(self) -> list[dict[str, Any]]:
        """The channels of the catalog."""
        catalog = await self._catalog()
        return [] if catalog is None else [msgspec.to_builtins(spec) for spec in (await catalog.channels()).values()]

    async def _catalog(self) -> Catalog | None:
        """That of the cloud; none where datasets were never added."""
        for site in await self.ask("site", "map"):
            if site["kind"] == "cloud" and site["store"]:
                catalog = Catalog(self._connection, site["site"])
                try:
                    await catalog.datasets()
                except InputError:
                    return None
                return catalog
        return None
