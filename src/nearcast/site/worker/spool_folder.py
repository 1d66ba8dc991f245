"""The folder of a worker's spools has one user: in a spool that two write, messages get each other's ids."""

from __future__ import annotations

import contextlib
import fcntl
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats.tasks import retry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["sole_user"]

_WAIT_LIMIT = 20.0


@contextlib.asynccontextmanager
async def sole_user(folder: Path, within: float = _WAIT_LIMIT) -> AsyncIterator[None]:
    """Make the folder, and wait until nobody else uses it; the lock ends with the process at the latest."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - before the worker does anything
    with (folder / "lock").open("wb") as file:

        async def take() -> None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NearcastError(f"{folder} is used by another worker, which has not ended") from None

        await retry(take, within=within, on=NearcastError, pause=0.05)
        yield
