"""Re-homing a client: journal, tell the client, record its new home. Decisions only; `executor` does the I/O.

The client itself moves, make-before-break (`nearcast.client.coordination.rehoming`). The command is idempotent, so
a coordinator that finds the move in the journal sends it again. A client that does not answer stays at its old home.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from nearcast.coordinator.executor.steps import Erase, Finish, Journal

__all__ = ["ClientStep", "RecordHome", "TellClient", "begin_client_move", "resume_client_move"]


@dataclass(frozen=True)
class TellClient:
    """Send the client the address of its new home. Answer: why it stays, empty when it is connected there."""


@dataclass(frozen=True)
class RecordHome:
    """Write the new home to the registry."""


ClientStep = Journal | TellClient | RecordHome | Erase


def begin_client_move() -> Generator[ClientStep, Any, Finish]:
    """The steps of a new move."""
    yield Journal()
    return (yield from resume_client_move())


def resume_client_move() -> Generator[ClientStep, Any, Finish]:
    """The steps of a move that is in the journal."""
    reason = yield TellClient()
    if not reason:
        yield RecordHome()
    yield Erase()
    return Finish("abandoned" if reason else "done", reason)
