"""Which coordinator a site obeys: the one whose term is in the lease of the coordinators' state.

A term in a command is only a claim. The lease is what coordinators elect their leader by, so it settles every claim:
a site takes a term that it does not follow yet only when a store says so, and a lie leaves nothing behind. While no
store has a lease (no coordinator ever ran) a term is refused only when it is lower than the last one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode, drop
from nearcast.nats.kv import Bucket, BucketError, BucketNotFoundError
from nearcast.nats.lease import LEASE_KEY, Lease
from nearcast.nats.rpc import StaleTermError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.nats.connection import Connection
    from nearcast.protocol.control import TermClaim

__all__ = ["TermCheck"]

_log = logging.getLogger(__name__)
_READ_LIMIT = 2.0


class TermCheck:
    """stores: the sites whose stores may have the state of coordinators, the likeliest first."""

    def __init__(self, connection: Connection, stores: Sequence[str]) -> None:
        self._connection, self._stores = connection, stores
        self._reading, self._answering = asyncio.Lock(), asyncio.Lock()
        self._lease_seen = False
        self.term = 0

    async def require(self, term: int) -> None:
        """Follow this term; StaleTermError when another one leads, NearcastError when nobody can say that it leads."""
        if term != self.term:
            await self._check(term, self._reading)
            self.term = term

    async def answer(self, claim: TermClaim) -> None:
        """For a client that was given a command: raises as `require` does, and changes nothing."""
        if claim.term != self.term:  # those who ask wait for each other, and commands for nobody who asks
            await self._check(claim.term, self._answering)

    async def _check(self, term: int, turn: asyncio.Lock) -> None:
        async with turn:
            stored = await self._stored_terms(term)
        if term in stored:
            return
        if stored or self._lease_seen:
            leads = max(stored, default=self.term)
            if term < leads:
                raise StaleTermError(f"term {term} is over; term {leads} leads", leads)
            raise NearcastError(f"term {term} is in no store's lease, so nobody leads with it; refused")
        if term < self.term:
            raise StaleTermError(f"term {term} is over; term {self.term} leads", self.term)

    async def _stored_terms(self, wanted: int) -> set[int]:
        """The terms of the leases that the stores have, up to the one that is wanted."""
        found: set[int] = set()
        for site in self._stores:
            bucket = Bucket(self._connection, site, subjects.STATE_BUCKET, timeout=_READ_LIMIT)
            try:
                entry = await bucket.get(LEASE_KEY)
                if entry is not None:
                    lease: Lease = decode(entry.payload, Lease)
                    found.add(lease.term)
                    self._lease_seen = True
                    if lease.term == wanted:
                        break
            except BucketNotFoundError:
                continue
            except MalformedError as error:
                drop("lease", f"{site}/{subjects.STATE_BUCKET}", error)
            except (BucketError, TimeoutError) as error:
                _log.debug("the lease in the store of %s cannot be read: %s", site, error)
        return found
