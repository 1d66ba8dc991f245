"""The term a coordinator leads in: checked before every step, and part of every command and every move's id."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.nats.lease import LeaseMachine

__all__ = ["DeposedError", "Term", "highest_of_most"]


def highest_of_most(terms: Sequence[int]) -> int:
    """The highest term that more than half of those asked have reached; 0 of nobody."""
    return sorted(terms, reverse=True)[len(terms) // 2] if terms else 0


class DeposedError(NearcastError):
    """This coordinator no longer leads; its successor continues what it began."""


class Term:
    """The term of a lease, for as long as the lease is held."""

    def __init__(self, lease: LeaseMachine) -> None:
        self._lease = lease
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """The number of the term; DeposedError when the lease is not held."""
        if not self._lease.leads(asyncio.get_running_loop().time()):
            raise DeposedError(f"{self._lease.name} does not lead any more")
        return self._lease.term

    @property
    def last(self) -> int:
        """The number of the term, whether or not the lease is still held."""
        return self._lease.term

    def exceed(self, term: int) -> None:
        """Most sites have seen this term: the lease continues with a higher one."""
        self._lease.exceed(term)

    def next_move_id(self) -> str:
        """An id that no other move has or had. A coordinator may lead twice in one term, so numbers continue."""
        return f"{self._lease.term}-{next(self._numbers)}"
