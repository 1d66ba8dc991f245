"""What a user changes through console and REST: by operators only, each on a connection of its own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from nearcast.client.dead_letters import DeadLetters
from nearcast.errors import NearcastError
from nearcast.nats.audit import AuditLog
from nearcast.nats.coordinator_rpc import call_coordinator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.web.operations import Operations
    from nearcast.web.users import ConsoleUser

__all__ = ["Changes"]

_log = logging.getLogger(__name__)
_LIMIT, _MOVE_LIMIT = 10.0, 600.0
_RETRIES_PER_S = 100.0


class Changes:
    """Of one user. The coordinator notes in the audit log who asked it; what the stores are told is noted here."""

    def __init__(self, operations: Operations, user: ConsoleUser) -> None:
        self._operations, self._user = operations, user

    async def ask(self, noun: str, verb: str, **body: Any) -> Any:
        """One request to the coordinator that leads."""
        self._user.require_operator()
        limit = _MOVE_LIMIT if verb in ("move", "execute") else _LIMIT
        return await call_coordinator(self._user.connection, noun, verb, body, object, limit)

    async def retry(self, topic: str, ids: Iterable[str], *, force: bool) -> list[dict[str, Any]]:
        """Give dead letters to their processors again; what became of each."""
        self._user.require_operator()
        letters = await self._operations.dead_letters(topic, ids)
        outcomes: list[dict[str, Any]] = [
            {"id": one.letter.id, "topic": one.letter.topic, "outcome": one.outcome, "sent": one.sent}
            async for one in DeadLetters(self._user.connection).retry(letters, _RETRIES_PER_S, force=force)
        ]
        await self.note("dead letters retry", topic, f"{sum(one['sent'] for one in outcomes)} of {len(letters)}")
        return outcomes

    async def drop(self, topic: str, ids: Iterable[str]) -> int:
        """Settle dead letters without trying them again."""
        self._user.require_operator()
        letters = await self._operations.dead_letters(topic, ids)
        dropped = await DeadLetters(self._user.connection).drop(letters)
        await self.note("dead letters drop", topic, f"{dropped} of {len(letters)}")
        return dropped

    async def note(self, action: str, what: str, outcome: str = "done") -> None:
        """Note in the audit log what was changed without the coordinator."""
        try:
            if (store := await self._operations.cloud_store()) is not None:
                await AuditLog(self._user.connection, store).note(self._user.name, action, what, outcome)
        except NearcastError as error:
            _log.warning("not in the audit log: %s of %s: %s", action, what, error)
