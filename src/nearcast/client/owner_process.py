"""A client belongs to the process that opened it: a forked child has its socket, but nothing that serves it."""

from __future__ import annotations

import os
from typing import ClassVar

from nearcast.errors import NearcastError

__all__ = ["OwnerProcess"]


class OwnerProcess:
    """The process that opened a client. No system call: what is published asks, too."""

    __slots__ = ("_client", "_pid")
    current: ClassVar[int] = os.getpid()

    def __init__(self, client: str) -> None:
        self._client, self._pid = client, OwnerProcess.current

    @property
    def forked(self) -> bool:
        """Whether this is a child of that process."""
        return self._pid != OwnerProcess.current

    def check(self) -> None:
        """NearcastError in a child."""
        if self._pid != OwnerProcess.current:
            raise NearcastError(
                f"client {self._client} was opened in process {self._pid}; "
                f"open one of its own in this process, {OwnerProcess.current}"
            )


def _note_fork() -> None:
    OwnerProcess.current = os.getpid()


os.register_at_fork(after_in_child=_note_fork)
